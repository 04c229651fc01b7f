//! A model file without its weights: metadata, specification, tokenizer, chat template.

use crate::error::{Error, ErrorKind};
use minfer_gguf::Gguf;
use minfer_models::{ModelSpec, read_spec};
use minfer_text::{ChatTemplate, Tokenizer, TokenizerError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An opened GGUF file. The tokenizer is built on first use, so that a file without one still runs by ids
/// and a file without tensors still tokenizes.
pub struct ModelFile {
    path: PathBuf,
    gguf: Gguf,
    tokenizer: OnceLock<Result<Arc<Tokenizer>, TokenizerError>>,
}

impl ModelFile {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file is missing, not GGUF, cut short, or inconsistent.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let gguf = Gguf::open(path).map_err(|e| Error::model(path, e))?;
        Ok(ModelFile { path: path.to_path_buf(), gguf, tokenizer: OnceLock::new() })
    }

    /// Where the file is.
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

    /// The chat template in the file, if it has one.
    ///
    /// # Errors
    /// The template does not parse, or the file has no tokenizer.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        let key = "tokenizer.chat_template";
        let source = self.gguf.metadata.str(key).map_err(|e| Error::model(&self.path, e))?;
        let Some(source) = source else { return Ok(None) };
        let template = ChatTemplate::for_tokenizer(source, self.tokenizer()?);
        template.map(Some).map_err(|e| Error::model(&self.path, e))
    }
}
