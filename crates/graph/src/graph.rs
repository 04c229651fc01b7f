//! The compute graph: a list of nodes in build order. Building computes nothing.

use crate::backend::BackendTag;
use crate::error::NodeRef;
use crate::op::{InputKind, Op};
use crate::shape::{DType, Shape};
use minfer_gguf::TensorType;

/// Index of a node in [`Graph::nodes`]. Sources always have smaller ids.
pub type NodeId = usize;

/// Index of a weight in [`Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// A model tensor that the graph reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// Name in the file.
    pub name: String,
    /// Type of its blocks.
    pub ty: TensorType,
    /// Rows (output values of a matmul, vocabulary entries of a table, 1 for a vector).
    pub rows: usize,
    /// Values per row, contiguous in memory.
    pub cols: usize,
    /// The tensor whose rows these are, if they are not all of the tensor of this name.
    pub part: Option<TensorPart>,
}

/// Rows of a tensor that holds several weights one below the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorPart {
    /// Name in the file.
    pub tensor: String,
    /// First row.
    pub first_row: usize,
}

impl WeightSpec {
    /// A whole tensor.
    pub fn new(name: impl Into<String>, ty: TensorType, rows: usize, cols: usize) -> Self {
        WeightSpec { name: name.into(), ty, rows, cols, part: None }
    }

    /// Name of the tensor in the file.
    pub fn tensor(&self) -> &str {
        self.part.as_ref().map_or(&self.name, |p| &p.tensor)
    }

    /// Bytes in the file, if rows are whole blocks.
    pub fn bytes(&self) -> Option<u64> {
        (self.ty.row_bytes(self.cols)? as u64).checked_mul(self.rows as u64)
    }
}

/// One operation of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Own index.
    pub id: NodeId,
    /// `blk.3.ffn_down`; unique in the graph.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Producers of its inputs, in the op's order.
    pub src: Vec<NodeId>,
    /// Shape of the output.
    pub shape: Shape,
    /// Element type of the output.
    pub dtype: DType,
    /// Which of the model's blocks it belongs to, from 0; what follows the last block has the number of blocks, and
    /// what comes before the first one has none. Placement by layer goes by this, never by names.
    pub block: Option<usize>,
    /// Where it runs; set by `assign`, or before it to pin the node.
    pub backend: Option<BackendTag>,
    /// Whether `backend` was set before `assign`. A pinned input is data that something placed on a
    /// device, so that, unlike other inputs, it counts as a node when splits are cut.
    pub pinned: bool,
}

impl Node {
    /// Whether the node is host-filled data.
    pub fn is_input(&self) -> bool {
        matches!(self.op, Op::Input(_))
    }

    /// The node as errors show it.
    pub fn reference(&self) -> NodeRef {
        NodeRef { id: self.id, name: self.name.clone(), op: self.op.name() }
    }
}

/// Nodes in build order, the weights they read, and what goes in and out.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Identity for reuse: equal parameters and model give an equal graph and the same value.
    pub uid: u64,
    /// Nodes; execution, liveness and freeing all use this order.
    pub nodes: Vec<Node>,
    /// Weight table.
    pub weights: Vec<WeightSpec>,
    /// Nodes whose values the caller reads after a step.
    pub outputs: Vec<NodeId>,
}

impl Graph {
    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0]
    }

    /// The input of a kind, if the graph has one.
    pub fn input(&self, kind: InputKind) -> Option<NodeId> {
        self.nodes.iter().find(|n| n.op == Op::Input(kind)).map(|n| n.id)
    }

    /// The node of a name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().find(|n| n.name == name).map(|n| n.id)
    }

    /// Number of consumers of each node, plus one for a graph output.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut uses = vec![0; self.nodes.len()];
        for &s in self.nodes.iter().flat_map(|n| &n.src) {
            uses[s] += 1;
        }
        for &o in &self.outputs {
            uses[o] += 1;
        }
        uses
    }

    /// Which nodes contribute to an output or a KV region; the others are dead and get no buffer.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        for &o in &self.outputs {
            live[o] = true;
        }
        for node in self.nodes.iter().rev() {
            live[node.id] |= node.op.writes_kv();
            if live[node.id] {
                for &s in &node.src {
                    live[s] = true;
                }
            }
        }
        live
    }
}
