//! Faults that a [`Chaos`](super::Chaos) device has on purpose.

use crate::error::BackendError;
use std::fmt;
use std::str::FromStr;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A node fails when it runs. The device drops what is queued behind it and goes on.
    Node,
    /// The device disappears while a node runs.
    Lost,
    /// A wait runs out of time. What was queued may or may not have run; the device is not usable any more.
    Timeout,
    /// There is no memory for a buffer.
    Memory,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 4] = [FaultKind::Node, FaultKind::Lost, FaultKind::Timeout, FaultKind::Memory];

    /// Name in `MINFER_CHAOS_FAULT`.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Node => "node",
            FaultKind::Lost => "lost",
            FaultKind::Timeout => "timeout",
            FaultKind::Memory => "memory",
        }
    }

    /// What the device reports.
    pub(super) fn error(self, bytes: usize) -> BackendError {
        match self {
            FaultKind::Node => BackendError::Device("injected fault".into()),
            FaultKind::Lost => BackendError::Lost("injected".into()),
            FaultKind::Timeout => BackendError::Timeout(0.0),
            FaultKind::Memory => BackendError::OutOfMemory(bytes),
        }
    }
}

/// A fault that happens once: at the `at`-th event of its kind from now, counted from 1. Events are nodes
/// that the device runs, waits that find queued work, or buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// When.
    pub at: u64,
}

impl Fault {
    /// Counts an event; whether it is the one that goes wrong.
    pub(super) fn strikes(slot: &mut Option<Fault>, kinds: &[FaultKind]) -> Option<FaultKind> {
        let fault = slot.as_mut().filter(|f| kinds.contains(&f.kind))?;
        fault.at = fault.at.saturating_sub(1);
        let struck = (fault.at == 0).then_some(fault.kind);
        if struck.is_some() {
            *slot = None;
        }
        struck
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.at)
    }
}

impl FromStr for Fault {
    type Err = String;

    /// `node:120`, `lost:120`, `timeout:3`, `memory:2`.
    fn from_str(text: &str) -> Result<Fault, String> {
        let (kind, at) = text.split_once(':').ok_or_else(|| format!("`{text}` is not KIND:COUNT"))?;
        let known = FaultKind::ALL.into_iter().find(|k| k.name() == kind);
        let kind = known.ok_or_else(|| {
            format!("`{kind}` is no kind of fault ({})", FaultKind::ALL.map(FaultKind::name).join(", "))
        })?;
        match at.parse() {
            Ok(at) if at > 0 => Ok(Fault { kind, at }),
            _ => Err(format!("`{at}` is no count from 1")),
        }
    }
}
