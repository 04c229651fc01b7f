//! `minfer tokenize`: ids of a text.

use super::{print, print_json};
use crate::args::TokenizeArgs;
use crate::inputs;
use anyhow::Result;
use minfer::text::EncodeOptions;
use serde_json::json;

pub fn run(args: &TokenizeArgs) -> Result<()> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => inputs::read_text(path)?,
        (None, None) => inputs::stdin_text("no text: give it as an argument, with -f, or on stdin")?,
    };
    let file = inputs::open_file(Some(&args.model), args.offline)?;
    let tokenizer = file.tokenizer()?;
    inputs::warn_of_merges(tokenizer);
    let options = EncodeOptions { add_bos: !args.no_bos, parse_special: args.special };
    let ids = tokenizer.encode(&text, options);
    if args.json {
        let list = ids
            .iter()
            .map(|&id| json!({ "id": id, "text": String::from_utf8_lossy(&tokenizer.token_bytes(id)) }));
        return print_json(&list.collect());
    }
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    print(&words.join(" "))
}
