//! `minfer run`: one answer.

use super::counted;
use crate::args::RunArgs;
use crate::exit::Usage;
use crate::inputs;
use crate::sampling;
use crate::source::{ModelSpec, SourceError};
use anyhow::{Context, Result, ensure};
use minfer::text::{EncodeOptions, Message, RenderInput, Rendered};
use minfer::{Answer, Control, Finish, GenerateOptions, Model, Session, knob_value};
use std::io::{self, Write};

const NO_PROMPT: &str = "no prompt: give it as an argument after the model, with -p or -f, or on stdin";

pub fn run(args: &RunArgs) -> Result<()> {
    let (name, word) = model_and_prompt(args)?;
    let prompt = prompt_text(args, word)?;
    let config = sampling::config(&args.sampling)?;
    sampling::idle(&args.sampling).iter().for_each(|note| crate::console::note!("{note}"));
    let (model, mut session) = inputs::load(name, &args.model)?;
    let mut sampler = sampling::sampler(config, &model)?;
    let ids = prompt_ids(args, &model, &prompt)?;
    let limit = session.options().n_ctx;
    crate::console::note!(
        "{} on {}, context {limit}",
        crate::console::shown_name(model.file().path()),
        model.device()
    );
    let sequence = session.new_sequence()?;
    let options = GenerateOptions {
        max_tokens: usize::try_from(args.limits.max_tokens).ok(),
        stop: args.limits.stop.clone(),
        ignore_eos: args.ignore_eos,
        ..GenerateOptions::default()
    };
    let mut closed = None;
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let control = Control { cancel: Some(&cancel), ..Control::default() };
    let answer =
        minfer::generate(&mut session, sequence, &ids, &mut sampler, &options, &control, &mut |text| {
            let mut out = io::stdout().lock();
            if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                cancel.store(true, std::sync::atomic::Ordering::Relaxed);
                closed.get_or_insert(e);
            }
        })?;
    if let Some(e) = closed {
        return Err(e).context("stdout");
    }
    if !answer.text.ends_with('\n') {
        writeln!(io::stdout()).context("stdout")?;
    }
    report(&answer, &session, sampler.config());
    dump(&session)
}

/// Which words are the model and the prompt.
fn model_and_prompt(args: &RunArgs) -> Result<(Option<&str>, Option<&str>)> {
    let given = args.model.model.as_deref();
    match (args.words.as_slice(), given) {
        ([], given) => Ok((given, None)),
        ([word], Some(given)) => Ok((Some(given), Some(word))),
        ([word], None) => {
            ModelSpec::parse(word).map_err(maybe_a_prompt)?;
            Ok((Some(word), None))
        }
        ([model, prompt], None) => Ok((Some(model), Some(prompt))),
        ([a, _], Some(b)) => Err(Usage(format!("two models: `{a}` and `{b}`")).into()),
        _ => Err(Usage("at most a model and a prompt".into()).into()),
    }
}

/// The prompt as it is given; from a file or stdin without the line end at its end.
fn prompt_text(args: &RunArgs, word: Option<&str>) -> Result<String> {
    let (text, missing) = match (word, &args.prompt, &args.file) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
            return Err(Usage("two prompts: one as an argument and one by option".into()).into());
        }
        (Some(word), None, None) => (word.to_string(), "the prompt is empty"),
        (None, Some(text), _) => (text.clone(), "the prompt is empty"),
        (None, None, None) => (inputs::without_line_end(inputs::stdin_text(NO_PROMPT)?), NO_PROMPT),
        (None, None, Some(path)) => {
            let text = inputs::without_line_end(inputs::read_text(path)?);
            ensure!(!text.is_empty(), "{}: the prompt is empty", path.display());
            (text, "")
        }
    };
    if text.is_empty() { Err(Usage(missing.into()).into()) } else { Ok(text) }
}

/// A single word that is no model may be a prompt.
fn maybe_a_prompt(e: SourceError) -> anyhow::Error {
    if !matches!(e, SourceError::Unknown { .. }) {
        return e.into();
    }
    let forms =
        "a model and a prompt: minfer run MODEL PROMPT; a prompt for the default model: minfer run -p PROMPT";
    let text = format!("{e} ({forms})");
    anyhow::Error::from(e).context(text)
}

/// The prompt as ids: through the model's chat template, or as it is with `--raw`.
fn prompt_ids(args: &RunArgs, model: &Model, prompt: &str) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    if args.raw {
        let ids = tokenizer.encode(prompt, EncodeOptions::default());
        return Ok(ids);
    }
    let template = inputs::chat_template(model, &args.template)?;
    let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_string);
    let system = args.system.iter().map(|s| Message::new("system", s.as_str()));
    let input = RenderInput {
        messages: system.chain([Message::new("user", prompt)]).collect(),
        add_generation_prompt: true,
        bos_token: text_of(tokenizer.bos()),
        eos_token: text_of(tokenizer.eos()),
        extra: args.template.chat_template_kwargs.clone().unwrap_or_default(),
        ..RenderInput::default()
    };
    let rendered = template.render(&input).and_then(Rendered::not_empty);
    let rendered = rendered.map_err(|e| inputs::rendering(e.into(), &args.template))?;
    Ok(tokenizer.encode_parts(&rendered.parts, true))
}

fn report(answer: &Answer, session: &Session, config: &minfer::SamplerConfig) {
    let rate = |n: usize, t: std::time::Duration| n as f64 / t.as_secs_f64().max(1e-9);
    let why = match &answer.finish {
        Finish::EndToken(_) => "the model ended".to_string(),
        Finish::StopString(s) => format!("stop text {s:?}"),
        Finish::MaxTokens => "token limit".to_string(),
        Finish::ContextFull => format!("context of {} is full", session.options().n_ctx),
        Finish::Cancelled => "cancelled".to_string(),
    };
    // The first token comes from the prompt's logits; the decode steps make the others.
    let decode = match answer.tokens.len() {
        n @ 0..2 => format!("answer {}", counted(n, "token")),
        n => format!("answer {n} tokens, {:.1} tokens/s", rate(n - 1, answer.decode_time)),
    };
    // The best token needs no draw.
    let seed = if config.temperature == 0.0 { String::new() } else { format!("; seed {}", config.seed) };
    crate::console::note!(
        "prompt {}, {:.1} tokens/s; {decode}; {why}{seed}",
        counted(answer.prompt_tokens, "token"),
        rate(answer.prompt_tokens, answer.prompt_time),
    );
}

/// `MINFER_GRAPH_DUMP`: the last logits and layer 0's KV regions, raw, for comparing runs.
fn dump(session: &Session) -> Result<()> {
    let Some(folder) = knob_value("MINFER_GRAPH_DUMP") else { return Ok(()) };
    let folder = std::path::Path::new(&folder);
    let failed = || format!("MINFER_GRAPH_DUMP={}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    for (name, bytes) in session.dump()? {
        std::fs::write(folder.join(name), bytes).with_context(failed)?;
    }
    Ok(())
}
