//! Split sets: one model in several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Every part has the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of the whole set) and a tensor table of its
//! own; the first part alone has the model's metadata. [`Gguf::split`] tells whether a file is a part, [`PartName`] what the others are
//! called, [`Gguf::join`] makes one header of all of them. Opening the files is up to the caller.

use crate::error::shown;
use crate::{Gguf, GgufError};

/// The keys of a part.
const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// What a part says about its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Which part this is, from 0.
    pub no: u32,
    /// Number of parts, at least 2.
    pub count: u32,
    /// Number of tensors of all parts together.
    pub tensors: u64,
}

/// The name of a part's file: `PREFIX-00001-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// What comes before the numbers.
    pub prefix: String,
    /// Which part this is, from 0.
    pub no: u32,
    /// Number of parts.
    pub count: u32,
}

impl PartName {
    /// Reads a file's name (without folders).
    pub fn parse(name: &str) -> Option<PartName> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            let plain = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u32>().ok().filter(|_| plain)
        };
        let (no, count) = (number(no)?.checked_sub(1)?, number(count)?);
        (no < count).then(|| PartName { prefix: prefix.to_owned(), no, count })
    }

    /// The name of another part of the same set.
    pub fn of_part(&self, no: u32) -> String {
        format!("{}-{:05}-of-{:05}.gguf", self.prefix, u64::from(no) + 1, self.count)
    }
}

/// Why files don't make one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
#[non_exhaustive]
pub struct SplitError {
    /// Which of the files is to blame, from 0.
    pub part: usize,
    /// What is wrong with it.
    pub problem: SplitProblem,
}

/// What is wrong with a part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitProblem {
    /// The file is a model of its own.
    #[error("is no part of a split model, but takes the place of part {} of {count}", no + 1)]
    Whole {
        /// Which part it should be, from 0.
        no: u32,
        /// Number of parts.
        count: u32,
    },
    /// A part of another set.
    #[error("is a part of another model: {what} is {found} instead of {expected}")]
    Foreign {
        /// What differs.
        what: String,
        /// Its value in the first part, or in the set.
        expected: String,
        /// Its value here.
        found: String,
    },
    /// A part at another part's place, so that it is there twice.
    #[error("is part {} of the split model, at the place of part {}", found + 1, expected + 1)]
    Repeated {
        /// Which part it should be, from 0.
        expected: u32,
        /// Which part it is, from 0.
        found: u32,
    },
    /// A tensor that an earlier part has too.
    #[error("tensor \"{}\" is in part {} of the split model too", tensor.escape_debug(), earlier + 1)]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The earlier part, from 0.
        earlier: usize,
    },
    /// The parts together hold more or fewer tensors than they say.
    #[error("the parts of the split model hold {found} tensors, and {expected} are announced")]
    Tensors {
        /// Number announced.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// The part is unreadable in this respect.
    #[error("{0}")]
    Metadata(String),
}

impl Gguf {
    /// What this file says about its split set; `None` for a model in one file.
    ///
    /// # Errors
    ///
    /// Keys of another type, a key that is missing, a part beyond the number of parts.
    pub fn split(&self) -> Result<Option<Split>, GgufError> {
        // A set that was merged again says that it has no parts.
        let count = self.metadata.u32(COUNT_KEY)?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        let (no, tensors) = (self.metadata.require_u32(NO_KEY)?, self.metadata.require_u64(TENSORS_KEY)?);
        if no >= count {
            let problem = format!("part number {no} of {count} parts, counted from 0");
            return Err(GgufError::Metadata { key: NO_KEY.to_owned(), offset: 0, problem });
        }
        Ok(Some(Split { no, count, tensors }))
    }

    /// One header of a set's parts, given in order: the metadata of the first and the tensors of all, each with its
    /// [`part`](crate::TensorInfo::part). `file_len` becomes the sum of the files' sizes.
    ///
    /// # Errors
    ///
    /// The first part that is no part, belongs elsewhere, is there twice or repeats a tensor; a wrong number of tensors (blamed on
    /// the first part).
    pub fn join(parts: Vec<Gguf>) -> Result<Gguf, SplitError> {
        let mut parts = parts.into_iter();
        let blame = |part, problem| SplitError { part, problem };
        let Some(mut whole) = parts.next() else {
            return Err(blame(0, SplitProblem::Metadata("a split model of no parts".to_owned())));
        };
        let first = read_split(&whole).map_err(|problem| blame(0, problem))?;
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX).saturating_add(1);
        let first = first.unwrap_or(Split { no: 0, count, tensors: 0 });
        check(&whole, &whole, 0, &Split { count, ..first }).map_err(|problem| blame(0, problem))?;
        for (part, mut gguf) in (1..).zip(parts) {
            check(&whole, &gguf, part, &first).map_err(|problem| blame(part, problem))?;
            whole.append(&mut gguf, part).map_err(|problem| blame(part, problem))?;
        }
        let found = u64::try_from(whole.tensors.len()).unwrap_or(u64::MAX);
        if found != first.tensors {
            return Err(blame(0, SplitProblem::Tensors { expected: first.tensors, found }));
        }
        Ok(whole)
    }

    /// Takes the tensors of a part over.
    fn append(&mut self, gguf: &mut Gguf, part: usize) -> Result<(), SplitProblem> {
        for mut tensor in gguf.tensors.drain(..) {
            tensor.part = part;
            if let Some(earlier) = self.tensor(&tensor.name) {
                let earlier = earlier.part;
                return Err(SplitProblem::Duplicate { tensor: tensor.name, earlier });
            }
            self.push(tensor);
        }
        self.file_len = self.file_len.saturating_add(gguf.file_len);
        Ok(())
    }
}

fn read_split(gguf: &Gguf) -> Result<Option<Split>, SplitProblem> {
    gguf.split().map_err(|e| SplitProblem::Metadata(e.to_string()))
}

/// Whether `gguf` is part `part` of the set that `first` begins and describes as `set`.
fn check(first: &Gguf, gguf: &Gguf, part: usize, set: &Split) -> Result<(), SplitProblem> {
    let no = u32::try_from(part).unwrap_or(u32::MAX);
    let Some(split) = read_split(gguf)? else {
        return Err(SplitProblem::Whole { no, count: set.count });
    };
    let differ = |what: &str, expected: String, found: String| {
        let what = what.to_owned();
        if expected == found { Ok(()) } else { Err(SplitProblem::Foreign { what, expected, found }) }
    };
    differ("the number of parts", set.count.to_string(), split.count.to_string())?;
    differ("the number of tensors", set.tensors.to_string(), split.tensors.to_string())?;
    // Later parts need not name the architecture; if they do, it must be the same.
    if let (Ok(expected), Ok(found)) = (first.architecture(), gguf.architecture()) {
        differ("the architecture", expected.to_owned(), found.to_owned())?;
    }
    // Nor repeat the metadata; what they do repeat must be the same, for only the first part's is read.
    for (key, found) in gguf.metadata.iter().filter(|(key, _)| !key.starts_with("split.")) {
        if let Some(expected) = first.metadata.get(key).filter(|expected| *expected != found) {
            let (expected, found) = (expected.brief(), found.brief());
            return Err(SplitProblem::Foreign { what: format!("key \"{}\"", shown(key)), expected, found });
        }
    }
    if split.no != no {
        return Err(SplitProblem::Repeated { expected: no, found: split.no });
    }
    Ok(())
}
