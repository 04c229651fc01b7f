//! From the sampling options to a sampler.

use crate::args::SamplingOptions;
use crate::exit::Usage;
use anyhow::Result;
use minfer::{Mirostat, Model, Sampler, SamplerConfig};

/// The word that stands for no sequence breaker.
const NONE: &str = "none";

/// The settings of a sampler, checked; its seed is the given one, or one drawn from the clock.
///
/// # Errors
/// A value outside its range, or options that contradict each other.
pub fn config(options: &SamplingOptions) -> Result<SamplerConfig> {
    let seed = options.seed.unwrap_or_else(drawn_seed);
    let mirostat = match options.mirostat {
        1 => Some(Mirostat::V1),
        2 => Some(Mirostat::V2),
        _ => None,
    };
    // Mirostat takes the place of the filters that are on by themselves; those that were asked for contradict it.
    let usual = if mirostat.is_some() { SamplerConfig::plain() } else { SamplerConfig::default() };
    let last_n = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    let config = SamplerConfig {
        logit_bias: options.logit_bias.clone(),
        repeat_penalty: options.repeat_penalty,
        frequency_penalty: options.frequency_penalty,
        presence_penalty: options.presence_penalty,
        repeat_last_n: last_n(options.repeat_last_n),
        dry_multiplier: options.dry_multiplier,
        dry_base: options.dry_base,
        dry_allowed_length: options.dry_allowed_length,
        dry_penalty_last_n: last_n(options.dry_penalty_last_n),
        dry_sequence_breakers: breakers(&options.dry_sequence_breaker, usual.dry_sequence_breakers)?,
        top_n_sigma: options.top_n_sigma,
        top_k: options.top_k.unwrap_or(usual.top_k),
        typical_p: options.typical,
        top_p: options.top_p.unwrap_or(usual.top_p),
        min_p: options.min_p.unwrap_or(usual.min_p),
        xtc_probability: options.xtc_probability,
        xtc_threshold: options.xtc_threshold,
        temperature: options.temp,
        dynatemp_range: options.dynatemp_range,
        dynatemp_exp: options.dynatemp_exp,
        mirostat,
        mirostat_lr: options.mirostat_lr,
        mirostat_ent: options.mirostat_ent,
        seed,
    };
    config.check()?;
    Ok(config)
}

/// A seed from the clock.
pub fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as u64 & 0xffff_ffff)
}

/// A sampler for a model.
///
/// # Errors
/// As [`config`]; or a logit bias for a token that the model does not have.
pub fn sampler(config: SamplerConfig, model: &Model) -> Result<Sampler> {
    let tokenizer = model.tokenizer()?;
    let n = tokenizer.n_vocab();
    if let Some(bias) = config.logit_bias.iter().find(|bias| bias.id as usize >= n) {
        return Err(Usage(format!("logit-bias: there is no token {} among {n}", bias.id)).into());
    }
    Ok(Sampler::with_tokenizer(config, tokenizer)?)
}

/// Options that were changed, but belong to a method that is off.
pub fn idle(options: &SamplingOptions) -> Vec<String> {
    let usual = SamplerConfig::plain();
    let (dry, xtc) = (options.dry_multiplier == 0.0, options.xtc_probability == 0.0);
    let (steady, mirostat) = (options.dynatemp_range == 0.0, options.mirostat == 0);
    let (window, dry_window) = (options.repeat_last_n == 0, options.dry_penalty_last_n == 0);
    let penalties =
        options.repeat_penalty != 1.0 || options.frequency_penalty != 0.0 || options.presence_penalty != 0.0;
    let rows = [
        (dry && options.dry_base != usual.dry_base, "dry-base", "dry-multiplier"),
        (
            dry && options.dry_allowed_length != usual.dry_allowed_length,
            "dry-allowed-length",
            "dry-multiplier",
        ),
        (dry && options.dry_penalty_last_n != -1, "dry-penalty-last-n", "dry-multiplier"),
        (dry && !options.dry_sequence_breaker.is_empty(), "dry-sequence-breaker", "dry-multiplier"),
        (!dry && dry_window, "dry-multiplier", "dry-penalty-last-n"),
        (xtc && options.xtc_threshold != usual.xtc_threshold, "xtc-threshold", "xtc-probability"),
        (steady && options.dynatemp_exp != usual.dynatemp_exp, "dynatemp-exp", "dynatemp-range"),
        (mirostat && options.mirostat_lr != usual.mirostat_lr, "mirostat-lr", "mirostat"),
        (mirostat && options.mirostat_ent != usual.mirostat_ent, "mirostat-ent", "mirostat"),
        (penalties && window, "a penalty", "repeat-last-n"),
        (!penalties && options.repeat_last_n != 64, "repeat-last-n", "a penalty"),
    ];
    let note = |(_, what, without): &(bool, &str, &str)| format!("{what} has no effect without {without}");
    rows.iter().filter(|(idle, ..)| *idle).map(note).collect()
}

/// The sequence breakers with their escapes resolved; the usual ones if none is named.
fn breakers(texts: &[String], usual: Vec<String>) -> Result<Vec<String>> {
    match texts {
        [] => Ok(usual),
        [text] if text == NONE => Ok(Vec::new()),
        texts if texts.iter().any(|text| text == NONE) => {
            Err(Usage(format!("dry-sequence-breaker: `{NONE}` goes with no other")).into())
        }
        texts => texts.iter().map(|text| unescaped(text)).collect(),
    }
}

fn unescaped(text: &str) -> Result<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(c @ ('\\' | '"' | '\'')) => c,
                _ => return Err(Usage(format!("dry-sequence-breaker: an unknown escape in `{text}`")).into()),
            },
            c => c,
        };
        out.push(c);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(args: &[&str]) -> SamplingOptions {
        let parsed = crate::args::Cli::try_parse_from([&["minfer", "run", "m", "p"], args].concat());
        match parsed.map(|cli| cli.command) {
            Ok(crate::args::Command::Run(args)) => args.sampling,
            _ => panic!("{args:?}"),
        }
    }

    #[test]
    fn without_options_the_library_s_defaults() {
        let seed = ["--seed", "5"];
        assert_eq!(config(&options(&seed)).unwrap(), SamplerConfig { seed: 5, ..SamplerConfig::default() });
    }

    #[test]
    fn every_option_arrives() {
        let args = "--temp 0.1 --top-k 2 --top-p 0.3 --min-p 0.4 --typical 0.5 --top-n-sigma 6 --xtc-probability 0.7 \
--xtc-threshold 0.08 --dynatemp-range 0.9 --dynatemp-exp 1.1 --mirostat-lr 0.12 --mirostat-ent 13 --logit-bias 14-1.5 \
--logit-bias 15=-inf --repeat-penalty 1.6 --frequency-penalty -1.7 --presence-penalty 1.8 --repeat-last-n -1 \
--dry-multiplier 1.9 --dry-base 2 --dry-allowed-length 21 --dry-penalty-last-n 22 --dry-sequence-breaker \\n\\\\ \
--dry-sequence-breaker x --seed 23";
        let args: Vec<&str> = args.split_whitespace().collect();
        let want = SamplerConfig {
            logit_bias: vec!["14-1.5".parse().unwrap(), minfer::LogitBias::ban(15)],
            repeat_penalty: 1.6,
            frequency_penalty: -1.7,
            presence_penalty: 1.8,
            repeat_last_n: usize::MAX,
            dry_multiplier: 1.9,
            dry_base: 2.0,
            dry_allowed_length: 21,
            dry_penalty_last_n: 22,
            dry_sequence_breakers: vec!["\n\\".to_owned(), "x".to_owned()],
            top_n_sigma: 6.0,
            top_k: 2,
            typical_p: 0.5,
            top_p: 0.3,
            min_p: 0.4,
            xtc_probability: 0.7,
            xtc_threshold: 0.08,
            temperature: 0.1,
            dynatemp_range: 0.9,
            dynatemp_exp: 1.1,
            mirostat: None,
            mirostat_lr: 0.12,
            mirostat_ent: 13.0,
            seed: 23,
        };
        assert_eq!(config(&options(&args)).unwrap(), want);
        assert_eq!(
            idle(&options(&args)),
            ["mirostat-lr", "mirostat-ent"].map(|o| format!("{o} has no effect without mirostat"))
        );
    }

    #[test]
    fn mirostat_replaces_defaults_and_contradicts_wishes() {
        let v2 = config(&options(&["--mirostat", "2", "--seed", "0", "--temp", "1"])).unwrap();
        assert_eq!(v2, SamplerConfig { mirostat: Some(Mirostat::V2), ..SamplerConfig::plain() });
        assert!(
            config(&options(&["--mirostat", "1", "--top-p", "1", "--top-k", "0", "--min-p", "0"])).is_ok()
        );
        for (option, value) in
            [("--top-p", "0.95"), ("--top-k", "40"), ("--min-p", "0.05"), ("--typical", "0.9")]
        {
            let error = config(&options(&["--mirostat", "1", option, value])).unwrap_err().to_string();
            assert!(error.contains(&option[2..]) && error.contains("mirostat"), "{error}");
        }
    }

    #[test]
    fn breakers_are_texts_none_or_the_usual() {
        let texts = |args: &[&str]| config(&options(args)).map(|c| c.dry_sequence_breakers);
        let option = "--dry-sequence-breaker";
        assert_eq!(texts(&[]).unwrap(), ["\n", ":", "\"", "*"]);
        assert!(texts(&[option, "none"]).unwrap().is_empty());
        for wrong in [&[option, "none", option, "x"][..], &[option, ""], &[option, "\\x"], &[option, "a\\"]] {
            assert!(texts(wrong).unwrap_err().to_string().contains("dry-sequence-breaker"));
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        assert!(idle(&options(&[])).is_empty());
        let notes = |args: &[&str]| idle(&options(args)).join("; ");
        assert!(notes(&["--dry-base", "2"]).contains("dry-base has no effect without dry-multiplier"));
        assert!(notes(&["--xtc-threshold", "0.2"]).contains("xtc-threshold"));
        assert!(notes(&["--repeat-penalty", "1.1", "--repeat-last-n", "0"]).contains("repeat-last-n"));
        assert_eq!(notes(&["--dry-multiplier", "1", "--dry-base", "2"]), "");
    }
}
