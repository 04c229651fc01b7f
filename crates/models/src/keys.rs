//! Reads an architecture's keys, remembering which were read so that `info` can list the others.

use crate::error::ModelError;
use minfer_gguf::{Array, Gguf, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Keys below the architecture's prefix.
pub struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
    read: RefCell<BTreeSet<String>>,
}

/// Floats whose reciprocals and squares are floats too. No model has others.
const USABLE: std::ops::RangeInclusive<f32> = 1e-18..=1e18;

/// A key that is refused unless it has a value that changes nothing.
pub struct RefusedKey {
    /// Key without the architecture's prefix.
    pub suffix: &'static str,
    /// Whether the value is one that changes nothing.
    pub neutral: fn(&Value) -> bool,
}

fn never(_: &Value) -> bool {
    false
}

fn zero(value: &Value) -> bool {
    value.as_integer() == Some(0) || matches!(value, Value::F32(x) if *x == 0.0)
}

fn one(value: &Value) -> bool {
    value.as_integer() == Some(1) || matches!(value, Value::F32(x) if *x == 1.0)
}

fn is_true(value: &Value) -> bool {
    matches!(value, Value::Bool(true))
}

fn is_false(value: &Value) -> bool {
    matches!(value, Value::Bool(false))
}

/// Keys that change a decoder's arithmetic: refused unless neutral, or unless the architecture reads them
/// ([`Architecture::reads`](crate::Architecture)).
pub const REFUSED: &[RefusedKey] = &[
    RefusedKey { suffix: "expert_count", neutral: zero },
    RefusedKey { suffix: "expert_shared_count", neutral: zero },
    RefusedKey { suffix: "expert_shared_feed_forward_length", neutral: zero },
    RefusedKey { suffix: "expert_weights_scale", neutral: zero_or_one },
    RefusedKey { suffix: "expert_gating_func", neutral: softmax },
    RefusedKey { suffix: "expert_group_count", neutral: zero_or_one },
    RefusedKey { suffix: "interleave_moe_layer_step", neutral: zero_or_one },
    RefusedKey { suffix: "leading_dense_block_count", neutral: zero },
    RefusedKey { suffix: "attention.sliding_window", neutral: zero },
    RefusedKey { suffix: "attention.scale", neutral: zero },
    RefusedKey { suffix: "attention.causal", neutral: is_true },
    RefusedKey { suffix: "attention.clamp_kqv", neutral: zero },
    RefusedKey { suffix: "attention.max_alibi_bias", neutral: zero },
    RefusedKey { suffix: "attention.temperature_length", neutral: zero },
    RefusedKey { suffix: "attention.temperature_scale", neutral: zero },
    RefusedKey { suffix: "attn_logit_softcapping", neutral: zero },
    RefusedKey { suffix: "final_logit_softcapping", neutral: zero },
    RefusedKey { suffix: "logit_scale", neutral: one },
    RefusedKey { suffix: "embedding_scale", neutral: one },
    RefusedKey { suffix: "residual_scale", neutral: one },
    RefusedKey { suffix: "use_parallel_residual", neutral: is_false },
    RefusedKey { suffix: "tensor_data_layout", neutral: reference_layout },
    RefusedKey { suffix: "rope.dimension_sections", neutral: never },
    RefusedKey { suffix: "nextn_predict_layers", neutral: zero },
];

fn zero_or_one(value: &Value) -> bool {
    zero(value) || one(value)
}

/// Gating function 1 is the softmax.
fn softmax(value: &Value) -> bool {
    matches!(value.as_integer(), Some(0 | 1))
}

fn reference_layout(value: &Value) -> bool {
    matches!(value, Value::String(s) if s == "Meta AI original pth" || s == "reference")
}

impl<'a> Keys<'a> {
    /// Keys of the file's architecture.
    pub fn new(gguf: &'a Gguf, arch: &'a str) -> Self {
        Keys { gguf, arch, read: RefCell::default() }
    }

    fn full(&self, suffix: &str) -> String {
        let key = format!("{}.{suffix}", self.arch);
        self.read.borrow_mut().insert(key.clone());
        key
    }

    /// A positive integer that must be there.
    pub fn count(&self, suffix: &str) -> Result<usize, ModelError> {
        let key = self.full(suffix);
        match self.gguf.metadata.u32(&key)? {
            None => Err(ModelError::key(&key, "missing")),
            Some(0) => Err(ModelError::key(&key, "is 0")),
            Some(n) => usize::try_from(n).map_err(|_| ModelError::key(&key, "too large")),
        }
    }

    /// A positive integer, or `None` if the key is absent.
    pub fn optional_count(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        let key = format!("{}.{suffix}", self.arch);
        if self.gguf.metadata.contains(&key) { self.count(suffix).map(Some) } else { Ok(None) }
    }

    /// One positive integer per layer: a single value or an array of `n_layer`.
    pub fn count_per_layer(&self, suffix: &str, n_layer: usize) -> Result<Vec<usize>, ModelError> {
        let key = self.full(suffix);
        if !matches!(self.gguf.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(vec![self.count(suffix)?; n_layer]);
        }
        let values = self.gguf.metadata.u32s(&key)?.unwrap_or_default();
        if values.len() != n_layer {
            return Err(ModelError::key(&key, format!("{} values for {n_layer} layers", values.len())));
        }
        if values.contains(&0) {
            return Err(ModelError::key(&key, "holds a 0"));
        }
        Ok(values.into_iter().map(|v| v as usize).collect())
    }

    /// As [`Keys::count_per_layer`], or `None` if the key is absent.
    pub fn optional_count_per_layer(
        &self,
        suffix: &str,
        n_layer: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let key = format!("{}.{suffix}", self.arch);
        if self.gguf.metadata.contains(&key) {
            self.count_per_layer(suffix, n_layer).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A positive float, or the default if the key is absent.
    pub fn positive(&self, suffix: &str, default: Option<f32>) -> Result<f32, ModelError> {
        let key = self.full(suffix);
        let value = self.gguf.metadata.f32(&key)?.or(default);
        match value {
            None => Err(ModelError::key(&key, "missing")),
            Some(x) if USABLE.contains(&x) => Ok(x),
            Some(x) => Err(ModelError::key(&key, format!("is {x}"))),
        }
    }

    /// A string, if present.
    pub fn string(&self, suffix: &str) -> Result<Option<String>, ModelError> {
        let key = self.full(suffix);
        Ok(self.gguf.metadata.str(&key)?.map(str::to_string))
    }

    /// The full name of a key, for errors.
    pub fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    /// A positive float, if present; files state 0 for "none".
    pub fn factor(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        let key = self.full(suffix);
        match self.gguf.metadata.f32(&key)? {
            None | Some(0.0) => Ok(None),
            Some(x) if USABLE.contains(&x) => Ok(Some(x)),
            Some(x) => Err(ModelError::key(&key, format!("is {x}"))),
        }
    }

    /// A positive integer; absent or 0 is `None`.
    pub fn nonzero(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        let key = self.full(suffix);
        match self.gguf.metadata.u32(&key)? {
            None | Some(0) => Ok(None),
            Some(n) => usize::try_from(n).map(Some).map_err(|_| ModelError::key(&key, "too large")),
        }
    }

    /// A truth value, if present.
    pub fn flag(&self, suffix: &str) -> Result<Option<bool>, ModelError> {
        let key = self.full(suffix);
        Ok(self.gguf.metadata.bool(&key)?)
    }

    /// Which layers have a sliding window: all but the last of each `period`, or as the file lists them.
    pub fn sliding_layers(&self, n_layer: usize, period: usize) -> Result<Vec<bool>, ModelError> {
        let key = self.full("attention.sliding_window_pattern");
        let period = match self.gguf.metadata.get(&key) {
            None => period,
            Some(Value::Array(Array::Bool(list))) if list.len() == n_layer => return Ok(list.clone()),
            Some(Value::Array(_)) => {
                return Err(ModelError::key(
                    &key,
                    format!("needs one truth value for each of {n_layer} layers"),
                ));
            }
            Some(_) => self.count("attention.sliding_window_pattern")?,
        };
        Ok((0..n_layer).map(|i| i % period < period - 1).collect())
    }

    /// Fails on a key of [`REFUSED`] whose value would change the result, unless it is among `handled`.
    pub fn check_refused(&self, handled: &[&str]) -> Result<(), ModelError> {
        for refused in REFUSED.iter().filter(|r| !handled.contains(&r.suffix)) {
            let key = self.full(refused.suffix);
            match self.gguf.metadata.get(&key) {
                Some(value) if !(refused.neutral)(value) => {
                    return Err(ModelError::Refused { what: format!("key `{key}` = {}", value.brief()) });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Keys below the architecture's prefix that nothing read: harmless ones, for `info`.
    pub fn unread(&self) -> Vec<String> {
        let prefix = format!("{}.", self.arch);
        let read = self.read.borrow();
        let own = self.gguf.metadata.iter().map(|(k, _)| k).filter(|k| k.starts_with(&prefix));
        own.filter(|k| !read.contains(*k)).map(str::to_string).collect()
    }
}
