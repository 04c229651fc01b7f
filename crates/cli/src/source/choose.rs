//! Which of many files is the model that is meant: quantisations by name, and split sets as one model.

use std::collections::BTreeMap;

use minfer::gguf::PartName;

/// Quantisations by preference when none is asked for.
const PREFERRED: &[&str] = &[
    "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L",
    "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "F32",
];

/// A model among files: one file, or the parts of a split set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group<'p> {
    /// Paths, parts in their order. Never empty.
    pub files: Vec<&'p str>,
    /// Path of the first part that is not there.
    pub missing: Option<String>,
    /// The path without ending and numbers.
    stem: String,
}

/// Sorts paths into models.
pub(super) fn group<'p>(paths: &[&'p str]) -> Vec<Group<'p>> {
    let mut groups = Vec::new();
    let mut sets: BTreeMap<(String, u32), BTreeMap<u32, &'p str>> = BTreeMap::new();
    for &path in paths {
        match part_of(path) {
            Some((stem, part)) => {
                sets.entry((stem, part.count)).or_default().insert(part.no, path);
            }
            None => {
                let stem = path.strip_suffix(".gguf").unwrap_or(path).to_owned();
                groups.push(Group { files: vec![path], missing: None, stem });
            }
        }
    }
    for ((stem, count), parts) in sets {
        let missing = (0..count).find(|no| !parts.contains_key(no)).map(|no| part_name(&stem, no, count));
        groups.push(Group { files: parts.into_values().collect(), missing, stem });
    }
    groups
}

/// For a part of a split set the path of the set without numbers, and the numbers.
fn part_of(path: &str) -> Option<(String, PartName)> {
    let (folder, file) = path.rsplit_once('/').map_or(("", path), |(folder, file)| (folder, file));
    let part = PartName::parse(file)?;
    let stem = if folder.is_empty() { part.prefix.clone() } else { format!("{folder}/{}", part.prefix) };
    Some((stem, part))
}

fn part_name(stem: &str, no: u32, count: u32) -> String {
    PartName { prefix: stem.to_owned(), no, count }.of_part(no)
}

/// All parts of the set that `path` is a part of, in order; `path` alone if it is a whole model.
pub(super) fn parts(path: &str) -> Vec<String> {
    match part_of(path) {
        Some((stem, part)) => (0..part.count).map(|no| part_name(&stem, no, part.count)).collect(),
        None => vec![path.to_owned()],
    }
}

/// Chooses among the paths of a repository's files.
///
/// # Errors
/// A reason for the user: nothing fits, or what fits is a split set with a part missing.
pub(super) fn choose<'p>(paths: &[&'p str], quant: Option<&str>) -> Result<Vec<&'p str>, String> {
    let models: Vec<Group<'p>> = group(paths).into_iter().filter(|m| !is_projector(m.files[0])).collect();
    if models.is_empty() {
        return Err("there is no GGUF model in this repository".to_owned());
    }
    let of = |q: &str| models.iter().filter(|m| has_quant(&m.stem, q)).collect::<Vec<_>>();
    let wanted = match quant {
        Some(quant) => of(quant),
        None => match PREFERRED.iter().map(|q| of(q)).find(|found| !found.is_empty()) {
            Some(found) => found,
            // Nothing decides between several.
            None if models.len() == 1 => models.iter().collect(),
            None => Vec::new(),
        },
    };
    // The plain name is shorter than those of variants such as `-UD-Q4_K_M`.
    let Some(best) = wanted.into_iter().min_by_key(|m| (m.stem.len(), m.files.len(), m.files[0])) else {
        let names: Vec<&str> = models.iter().map(|m| m.files[0]).collect();
        let quant = quant.unwrap_or("Q4_K_M");
        return Err(format!("no file for the quantisation {quant}; there are: {}", names.join(", ")));
    };
    match &best.missing {
        Some(part) => Err(format!("{part} is missing: the split set is incomplete")),
        None => Ok(best.files.clone()),
    }
}

fn is_projector(path: &str) -> bool {
    path.to_ascii_lowercase().contains("mmproj")
}

/// True if `quant` stands in the path as a word: `Q4_K` is in neither `IQ4_K` nor `Q4_K_M`.
pub(super) fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_uppercase(), quant.to_ascii_uppercase());
    path.match_indices(&quant).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let after = path[at + quant.len()..].chars().next();
        before.is_none_or(|c| !c.is_ascii_alphanumeric())
            && after.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}
