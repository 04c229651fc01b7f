//! A model file without its weights: metadata, specification, tokenizer, chat template.

use crate::error::{Error, ErrorKind};
use minfer_gguf::{Gguf, GgufError, PartName, Split};
use minfer_models::{ModelSpec, read_spec};
use minfer_text::{ChatTemplate, Tokenizer, TokenizerError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An opened GGUF file, or all files of a split model. The tokenizer is built on first use, so that a file without one still runs by ids
/// and a file without tensors still tokenizes.
pub struct ModelFile {
    path: PathBuf,
    parts: Vec<PathBuf>,
    gguf: Gguf,
    tokenizer: OnceLock<Result<Arc<Tokenizer>, TokenizerError>>,
}

impl ModelFile {
    /// Reads the header of a file. Any part of a split model stands for all of them, which must lie in the same folder.
    ///
    /// # Errors
    /// A file is missing, not GGUF, cut short, or inconsistent; a part belongs elsewhere, is there twice or repeats a tensor.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let gguf = Gguf::open(path).map_err(|e| Error::model(path, e))?;
        let (gguf, parts) = match gguf.split().map_err(|e| Error::model(path, e))? {
            None => (gguf, vec![path.to_path_buf()]),
            Some(split) => join_parts(path, gguf, split)?,
        };
        Ok(ModelFile { path: path.to_path_buf(), parts, gguf, tokenizer: OnceLock::new() })
    }

    /// The files that hold the model, in the order of [`part`](minfer_gguf::TensorInfo::part): one, unless the model is split.
    pub fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// The file of a part.
    pub(crate) fn part(&self, part: usize) -> &Path {
        self.parts.get(part).unwrap_or(&self.path)
    }

    /// Where the file is that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Header, metadata and tensor table.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// What the model is.
    ///
    /// # Errors
    /// Not a model of a known architecture, or something is missing or senseless.
    pub fn spec(&self) -> Result<ModelSpec, Error> {
        read_spec(&self.gguf).map_err(|e| Error::model(&self.path, e))
    }

    /// The file's tokenizer.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not known.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        let built =
            self.tokenizer.get_or_init(|| Tokenizer::from_metadata(&self.gguf.metadata).map(Arc::new));
        match built {
            Ok(t) => Ok(t),
            Err(e) => Err(Error::new(ErrorKind::Model, format!("{}: {e}", self.path.display()))),
        }
    }

    /// The text of the chat template in the file, if it has one.
    ///
    /// # Errors
    /// It is no text.
    pub fn chat_template_source(&self) -> Result<Option<&str>, Error> {
        self.gguf.metadata.str("tokenizer.chat_template").map_err(|e| Error::model(&self.path, e))
    }

    /// The chat template in the file, if it has one.
    ///
    /// # Errors
    /// The template does not parse, or the file has no tokenizer.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        let Some(source) = self.chat_template_source()? else { return Ok(None) };
        let template = ChatTemplate::for_tokenizer(source, self.tokenizer()?);
        template.map(Some).map_err(|e| Error::model(&self.path, e))
    }
}

/// Reads the headers of the other parts of a split model and joins them.
fn join_parts(path: &Path, opened: Gguf, split: Split) -> Result<(Gguf, Vec<PathBuf>), Error> {
    let file_name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let name = PartName::parse(file_name).ok_or_else(|| {
        let (no, count) = (split.no + 1, split.count);
        let reason = format!(
            "part {no} of a split model, whose other parts can't be found: its name should end in -{no:05}-of-{count:05}.gguf"
        );
        Error::new(ErrorKind::Model, format!("{}: {reason}", path.display()))
    })?;
    let mut opened = Some(opened);
    let (mut headers, mut paths) = (Vec::new(), Vec::new());
    for no in 0..name.count {
        let part = path.with_file_name(name.of_part(no));
        let header = match opened.take_if(|_| no == name.no) {
            Some(header) => header,
            None => Gguf::open(&part).map_err(|e| part_error(&part, no, name.count, e))?,
        };
        headers.push(header);
        paths.push(part);
    }
    match Gguf::join(headers) {
        Ok(gguf) => Ok((gguf, paths)),
        Err(e) => Err(Error::model(paths.get(e.part).map_or(path, |p| p), e)),
    }
}

/// A part that can't be read.
fn part_error(part: &Path, no: u32, count: u32, e: GgufError) -> Error {
    match &e {
        GgufError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let reason = format!("part {} of {count} of the split model is missing", no + 1);
            Error::new(ErrorKind::Model, format!("{}: {reason}", part.display()))
        }
        _ => Error::model(part, e),
    }
}
