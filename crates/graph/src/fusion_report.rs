//! What was fused, what was not and why: as data, and as a text in which blocks that say the same share
//! a line.

use crate::error::NodeRef;
use crate::fuse::Fusion;
use crate::graph::{Graph, NodeId};
use crate::plan::Plan;
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// Why a pattern was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusionRefusal {
    /// Its switch is off.
    SwitchedOff,
    /// The nodes around the anchor are something else.
    Pattern(String),
    /// A near miss: a node stands between two that the fused op computes in one go.
    Between {
        /// What passes through it: `q`, `k` or `v`.
        what: &'static str,
        /// The node.
        node: NodeRef,
        /// Between what it stands, in words.
        place: &'static str,
    },
    /// The layer does not rotate `q` or `k`.
    NotRotated(&'static str),
    /// A node that would vanish is read by somebody else.
    UsedElsewhere(NodeId),
    /// A node that would vanish is a graph output.
    IsOutput(NodeId),
    /// The nodes run on different backends.
    BackendsDiffer(NodeId, NodeId),
    /// The backend has no kernel for the fused op.
    BackendRefuses(String),
    /// Sources or parameters that must be equal are not.
    Mismatch(String),
    /// A reader of the result comes before the place where the fused node would stand.
    Order(NodeId),
}

impl FusionRefusal {
    /// The reason, with nodes called by their names.
    pub fn explain(&self, graph: &Graph) -> String {
        self.words(&|id| {
            graph.nodes.get(id).map_or_else(|| format!("node {id}"), |n| format!("`{}`", n.name))
        })
    }

    fn words(&self, name: &dyn Fn(NodeId) -> String) -> String {
        match self {
            FusionRefusal::SwitchedOff => "switched off".into(),
            FusionRefusal::Pattern(what) => format!("no match: {what}"),
            FusionRefusal::Between { what, node, place } => {
                let does = match node.op {
                    "RmsNorm" => "is normed".into(),
                    "AddBias" => "gets its bias in a node of its own".into(),
                    op => format!("passes through {op}"),
                };
                format!("{what} {does} between {place} (`{}`)", node.name)
            }
            FusionRefusal::NotRotated(what) => format!("{what} is not rotated: the layer has no RoPE"),
            FusionRefusal::UsedElsewhere(id) => format!("{} is used elsewhere", name(*id)),
            FusionRefusal::IsOutput(id) => format!("{} is an output", name(*id)),
            FusionRefusal::BackendsDiffer(a, b) => {
                format!("{} and {} run on different devices", name(*a), name(*b))
            }
            FusionRefusal::BackendRefuses(why) => format!("the device refuses: {why}"),
            FusionRefusal::Mismatch(what) => what.clone(),
            FusionRefusal::Order(id) => format!("{} reads the result too early", name(*id)),
        }
    }
}

impl fmt::Display for FusionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(&|id| format!("node {id}")))
    }
}

/// A fusion that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// Which.
    pub fusion: Fusion,
    /// The node that now holds the fused op, under the name of the value it computes.
    pub node: NodeRef,
    /// The nodes whose work it does, in order, as they were; the one in whose place it stands among them.
    pub replaced: Vec<NodeRef>,
}

/// A candidate that was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfused {
    /// Which fusion.
    pub fusion: Fusion,
    /// The last node of what could have been the pattern.
    pub node: NodeRef,
    /// Why.
    pub why: FusionRefusal,
}

/// What was fused and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FusionReport {
    /// In the order in which they were applied. A fused node can be replaced by a later fusion.
    pub applied: Vec<Fused>,
    /// Candidates that were refused.
    pub refused: Vec<Unfused>,
}

impl FusionReport {
    /// How often a fusion was applied.
    pub fn count(&self, fusion: Fusion) -> usize {
        self.applied.iter().filter(|f| f.fusion == fusion).count()
    }

    /// The later fusion that took a fused node in.
    fn taken_by(&self, index: usize) -> Option<Fusion> {
        let id = self.applied[index].node.id;
        let later = &self.applied[index + 1..];
        later.iter().find(|f| f.replaced.iter().any(|r| r.id == id)).map(|f| f.fusion)
    }
}

impl fmt::Display for FusionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fusion in Fusion::ALL {
            writeln!(f, "{}: {} applied", fusion.name(), self.count(fusion))?;
        }
        for Unfused { fusion, node, why } in &self.refused {
            writeln!(f, "{} not at node {}: {why}", fusion.name(), node.id)?;
        }
        Ok(())
    }
}

/// Candidates of one fusion that fared alike: the same nodes of different blocks, or one node alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusionGroup {
    /// The fusion.
    pub fusion: Fusion,
    /// Name of the fused node or of the candidate; `blk.*.` stands for any of [`FusionGroup::blocks`].
    pub name: String,
    /// The blocks, ascending. Empty for nodes outside of blocks.
    pub blocks: Vec<usize>,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// What became of them.
    pub fate: Fate,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was fused.
    Fused {
        /// Op and name of each node that it replaces.
        replaced: Vec<(&'static str, String)>,
        /// The later fusion that took the fused node in.
        taken_by: Option<Fusion>,
    },
    /// It was not, for this reason.
    Refused(String),
}

/// All candidates of a plan, those that fared alike together, in the order of the fusion table.
pub fn fusion_groups(plan: &Plan) -> Vec<FusionGroup> {
    let mut groups: Vec<FusionGroup> = Vec::new();
    let report = &plan.fusions;
    for fusion in Fusion::ALL {
        for (i, fused) in report.applied.iter().enumerate().filter(|(_, f)| f.fusion == fusion) {
            let replaced = fused.replaced.iter().map(|r| (r.op, any_block(&r.name))).collect();
            let fate = Fate::Fused { replaced, taken_by: report.taken_by(i) };
            add(&mut groups, fusion, &fused.node, fate);
        }
        for candidate in report.refused.iter().filter(|r| r.fusion == fusion) {
            let reason = any_block(&candidate.why.explain(&plan.graph));
            add(&mut groups, fusion, &candidate.node, Fate::Refused(reason));
        }
    }
    groups
}

fn add(groups: &mut Vec<FusionGroup>, fusion: Fusion, node: &NodeRef, fate: Fate) {
    let name = any_block(&node.name);
    let alike = |g: &&mut FusionGroup| g.fusion == fusion && g.name == name && g.fate == fate;
    let group = match groups.iter_mut().find(alike) {
        Some(group) => group,
        None => {
            groups.push(FusionGroup { fusion, name, blocks: Vec::new(), nodes: Vec::new(), fate });
            let last = groups.len() - 1;
            &mut groups[last]
        }
    };
    group.blocks.extend(block_at(&node.name).filter(|(start, ..)| *start == 0).map(|(_, _, block)| block));
    group.nodes.push(node.id);
}

/// Start and end of the first number behind `blk.` in a text, and the number.
fn block_at(text: &str) -> Option<(usize, usize, usize)> {
    const PREFIX: &str = "blk.";
    let start = text.find(PREFIX)?;
    let from = start + PREFIX.len();
    let digits = text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let block = text[from..from + digits].parse().ok()?;
    Some((start, from + digits, block))
}

/// A text with a star for the number of each block that it names.
fn any_block(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((start, end, _)) = block_at(rest) {
        out += &rest[..start];
        out += "blk.*";
        rest = &rest[end..];
    }
    out + rest
}

/// `0…4, 6`.
fn ranges(blocks: &[usize]) -> String {
    let mut text = String::new();
    for run in blocks.chunk_by(|a, b| a + 1 == *b) {
        let comma = if text.is_empty() { "" } else { ", " };
        let (first, last) = (run[0], run[run.len() - 1]);
        let _ = match run.len() {
            1 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}…{last}"),
        };
    }
    text
}

/// The fusions of a plan for people: per fusion what it does, what it did, and what stood in its way.
pub fn fusions_text(plan: &Plan) -> String {
    let groups = fusion_groups(plan);
    let mut text = String::new();
    for fusion in Fusion::ALL {
        let _ = writeln!(text, "{}: {}", fusion.name(), fusion.what());
        let own: Vec<_> = groups.iter().filter(|g| g.fusion == fusion).collect();
        if own.is_empty() {
            text += "  nothing in this graph looks like it\n";
        }
        for group in own {
            let _ = writeln!(text, "  {group}");
        }
    }
    text
}

impl fmt::Display for FusionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let did = if matches!(self.fate, Fate::Fused { .. }) { "fused" } else { "not fused" };
        write!(f, "{did} {}×", self.nodes.len())?;
        if !self.blocks.is_empty() {
            write!(f, " in blk.{}", ranges(&self.blocks))?;
        }
        write!(f, ": `{}`", self.name)?;
        match &self.fate {
            Fate::Fused { replaced, taken_by } => {
                let parts: Vec<String> = replaced.iter().map(|(op, name)| format!("{op} `{name}`")).collect();
                write!(f, " for {}", parts.join(", "))?;
                taken_by.map_or(Ok(()), |by| write!(f, "; then part of {}", by.name()))
            }
            Fate::Refused(reason) => write!(f, ": {reason}"),
        }
    }
}

/// [`fusion_groups`] as JSON, with counts.
pub fn fusions_json(plan: &Plan) -> Value {
    let groups = fusion_groups(plan);
    let of = |fusion: Fusion| {
        let own = groups.iter().filter(|g| g.fusion == fusion);
        json!({
            "fusion": fusion.name(),
            "what": fusion.what(),
            "fused": plan.fusions.count(fusion),
            "not_fused": plan.fusions.refused.iter().filter(|r| r.fusion == fusion).count(),
            "groups": own.map(group_json).collect::<Vec<_>>(),
        })
    };
    Fusion::ALL.into_iter().map(of).collect()
}

fn group_json(group: &FusionGroup) -> Value {
    let FusionGroup { name, blocks, nodes, fate, .. } = group;
    let mut value = json!({ "name": name, "blocks": blocks, "nodes": nodes, "count": nodes.len() });
    match fate {
        Fate::Fused { replaced, taken_by } => {
            let replaced = replaced.iter().map(|(op, name)| json!({ "op": op, "name": name }));
            value["replaced"] = replaced.collect();
            value["then_part_of"] = json!(taken_by.map(Fusion::name));
        }
        Fate::Refused(reason) => value["reason"] = json!(reason),
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_and_hidden() {
        assert_eq!(block_at("blk.12.attn_q"), Some((0, 6, 12)));
        assert_eq!(block_at("output"), None);
        assert_eq!(block_at("blk.x"), None);
        assert_eq!(any_block("`blk.3.a` and `blk.14.b`"), "`blk.*.a` and `blk.*.b`");
        assert_eq!(any_block("blk.99999999999999999999999.a"), "blk.99999999999999999999999.a");
    }

    #[test]
    fn runs_of_blocks_are_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0…2, 4, 6…7");
    }
}
