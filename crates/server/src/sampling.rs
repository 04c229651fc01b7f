//! The fields of a request that say how tokens are picked.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::record::random_number;
use minfer::{LogitBias, SamplerConfig};
use serde_json::Value;

/// Most stop strings of a request.
pub const MOST_STOPS: usize = 16;

/// Reads the sampling fields that OpenAI's requests and ours have in common. What is absent is as in `minfer run`. Without
/// a seed one is drawn; the answer says which.
///
/// # Errors
/// A value out of its range.
pub fn read(fields: &mut Fields) -> Result<SamplerConfig, ApiError> {
    let mut config = SamplerConfig { seed: draw_seed(), ..SamplerConfig::default() };
    let f32_of = |value: Option<f64>, target: &mut f32| {
        if let Some(value) = value {
            *target = value as f32;
        }
    };
    f32_of(fields.number("temperature", 0.0..=2.0)?, &mut config.temperature);
    f32_of(fields.number("top_p", 0.0..=1.0)?, &mut config.top_p);
    f32_of(fields.number("min_p", 0.0..=1.0)?, &mut config.min_p);
    f32_of(fields.number("typical_p", 0.0..=1.0)?, &mut config.typical_p);
    f32_of(fields.number("frequency_penalty", -2.0..=2.0)?, &mut config.frequency_penalty);
    f32_of(fields.number("presence_penalty", -2.0..=2.0)?, &mut config.presence_penalty);
    f32_of(fields.number("repeat_penalty", 0.1..=10.0)?, &mut config.repeat_penalty);
    if let Some(k) = fields.whole("top_k", 0..=u64::MAX)? {
        config.top_k = usize::try_from(k).unwrap_or(0);
    }
    if let Some(seed) = seed(fields.take("seed"))? {
        config.seed = seed;
    }
    config.logit_bias = logit_bias(fields.object("logit_bias")?)?;
    check(&config)?;
    Ok(config)
}

/// What the sampler itself says of settings.
///
/// # Errors
/// They make no sense.
pub fn check(config: &SamplerConfig) -> Result<(), ApiError> {
    config.check().map_err(|e| ApiError::bad_body(e.to_string()))
}

/// A seed that every JSON reader can show: 53 bits.
pub fn draw_seed() -> u64 {
    random_number() >> 11
}

/// A seed as clients write it: any whole number, -1 for one that is drawn.
///
/// # Errors
/// It is no whole number.
pub fn seed(value: Option<Value>) -> Result<Option<u64>, ApiError> {
    match value {
        None => Ok(None),
        Some(value) => match (value.as_u64(), value.as_i64()) {
            (Some(seed), _) => Ok(Some(seed)),
            (None, Some(-1)) => Ok(None),
            (None, Some(negative)) => Ok(Some(negative.cast_unsigned())),
            (None, None) => Err(ApiError::invalid("seed", "`seed` must be a whole number")),
        },
    }
}

fn logit_bias(fields: Option<Fields>) -> Result<Vec<LogitBias>, ApiError> {
    let Some(fields) = fields else { return Ok(Vec::new()) };
    let wrong = |what: String| ApiError::invalid("logit_bias", format!("`logit_bias`: {what}"));
    let entry = |(id, bias): (String, Value)| {
        let token = id.parse().map_err(|_| wrong(format!("`{id}` is no token id")))?;
        match bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
            // By OpenAI's rules -100 bans a token.
            Some(-100.0) => Ok(LogitBias::ban(token)),
            Some(bias) => Ok(LogitBias { id: token, bias: bias as f32 }),
            None => Err(wrong(format!("`{id}` must have a number from -100 to 100"))),
        }
    };
    fields.into_entries().map(entry).collect()
}
