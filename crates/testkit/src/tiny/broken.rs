//! Deliberately broken models: what a loader must refuse, or a run must report.

use super::{TinyError, TinyModel, TinySpec};
use minfer_gguf::{TensorType, Value};

impl TinyModel {
    /// Sets a metadata entry, new or not.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.into(), value)),
        }
    }

    /// Removes a metadata entry.
    pub fn remove(&mut self, key: &str) -> Result<(), TinyError> {
        let at = self.metadata.iter().position(|(k, _)| k == key);
        self.metadata.remove(at.ok_or_else(|| TinyError::Missing(key.into()))?);
        Ok(())
    }

    /// Leaves a tensor out.
    pub fn drop_tensor(&mut self, name: &str) -> Result<(), TinyError> {
        let at = self.tensors.iter().position(|t| t.name == name);
        self.tensors.remove(at.ok_or_else(|| TinyError::Missing(name.into()))?);
        Ok(())
    }

    /// Puts a NaN into the first value of a tensor, or into the scale of its first block.
    pub fn poison(&mut self, name: &str) -> Result<(), TinyError> {
        let tensor = self.tensor_mut(name)?;
        let half_nan = half::f16::NAN.to_le_bytes();
        match tensor.ty {
            TensorType::F32 => tensor.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
            TensorType::Bf16 => tensor.bytes[..2].copy_from_slice(&half::bf16::NAN.to_le_bytes()),
            TensorType::Mxfp4 => {
                return Err(TinyError::Missing(format!("NaN in the {} `{name}`", tensor.ty)));
            }
            // The scale of these is behind the codes, of the others in front.
            TensorType::Q2K => tensor.bytes[80..82].copy_from_slice(&half_nan),
            TensorType::Q3K => tensor.bytes[108..110].copy_from_slice(&half_nan),
            TensorType::Q6K => tensor.bytes[208..210].copy_from_slice(&half_nan),
            _ => tensor.bytes[..2].copy_from_slice(&half_nan),
        }
        Ok(())
    }

    /// Cuts the last row off a matrix.
    pub fn drop_last_row(&mut self, name: &str) -> Result<(), TinyError> {
        let tensor = self.tensor_mut(name)?;
        let no_row = || TinyError::Missing(format!("row of {name}"));
        let [_, rows] = &mut tensor.dims[..] else { return Err(no_row()) };
        let row = tensor.bytes.len() / (*rows as usize).max(1);
        *rows = rows.checked_sub(1).ok_or_else(no_row)?;
        tensor.bytes.truncate(tensor.bytes.len() - row);
        Ok(())
    }
}

/// A broken file and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What was done.
    pub name: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
    /// Whether loading must fail; if not, the fault shows when the model runs (NaN).
    pub refused_at_load: bool,
}

type Change = fn(&mut TinyModel, &str) -> Result<(), TinyError>;

/// Changes that the loader of any family of [`super::FAMILIES`] must refuse. The text is the architecture.
const CHANGES: [(&str, Change); 18] = [
    ("unknown architecture", |m, _| {
        m.set("general.architecture", "mystery");
        Ok(())
    }),
    ("no architecture", |m, _| m.remove("general.architecture")),
    ("architecture is a number", |m, _| {
        m.set("general.architecture", 7u32);
        Ok(())
    }),
    ("no embedding", |m, _| m.drop_tensor("token_embd.weight")),
    ("no output norm", |m, _| m.drop_tensor("output_norm.weight")),
    ("a missing tensor in the last block", |m, _| {
        let name = m.tensors.last().map(|t| t.name.clone());
        m.drop_tensor(&name.unwrap_or_default())
    }),
    ("no head count", |m, arch| m.remove(&format!("{arch}.attention.head_count"))),
    ("no norm epsilon", |m, arch| m.remove(&format!("{arch}.attention.layer_norm_rms_epsilon"))),
    ("zero heads", |m, arch| set(m, arch, "attention.head_count", 0u32)),
    ("zero KV heads", |m, arch| set(m, arch, "attention.head_count_kv", 0u32)),
    ("KV heads that don't divide the heads", |m, arch| set(m, arch, "attention.head_count_kv", 5u32)),
    ("odd rope dimension", |m, arch| set(m, arch, "rope.dimension_count", 15u32)),
    ("rope dimension above the head's", |m, arch| set(m, arch, "rope.dimension_count", 1024u32)),
    ("original context of zero", |m, arch| set(m, arch, "rope.scaling.original_context_length", 0u32)),
    ("more blocks than there are", |m, arch| set(m, arch, "block_count", 1000u32)),
    ("huge embedding length", |m, arch| set(m, arch, "embedding_length", u32::MAX)),
    ("head count is text", |m, arch| set(m, arch, "attention.head_count", "six")),
    ("embedding rows below the vocabulary", |m, _| m.drop_last_row("token_embd.weight")),
];

fn set(m: &mut TinyModel, arch: &str, key: &str, value: impl Into<Value>) -> Result<(), TinyError> {
    m.set(&format!("{arch}.{key}"), value);
    Ok(())
}

/// Every broken variant of a model.
pub fn all(spec: &TinySpec) -> Result<Vec<Broken>, TinyError> {
    let model = spec.build()?;
    let mut list = Vec::new();
    for (name, change) in CHANGES {
        let mut broken = model.clone();
        change(&mut broken, spec.family.arch)?;
        list.push(Broken { name, bytes: broken.to_bytes()?, refused_at_load: true });
    }
    let mut poisoned = model.clone();
    poisoned.poison("blk.0.attn_norm.weight")?;
    list.push(Broken { name: "NaN in a norm", bytes: poisoned.to_bytes()?, refused_at_load: false });
    let mut poisoned = model.clone();
    poisoned.poison("blk.0.ffn_down.weight")?;
    list.push(Broken { name: "NaN in a matrix", bytes: poisoned.to_bytes()?, refused_at_load: false });
    let whole = model.to_bytes()?;
    for (name, len) in [
        ("empty", 0),
        ("cut in the magic", 3),
        ("cut in the metadata", 100),
        ("cut in the data", whole.len() / 2),
        ("cut in the last tensor", whole.len() - 33),
    ] {
        list.push(Broken { name, bytes: whole[..len].to_vec(), refused_at_load: true });
    }
    Ok(list)
}
