//! A program to run, and how it exited.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The program and its arguments. The program is looked up in the bottle's `PATH`.
    pub argv: Vec<String>,
    /// Variables to add to the provisioned environment. These variables override provisioned variables of the
    /// same name.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory; the workspace if absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The size of the terminal in which the process runs. If absent, the process runs with pipes.
    #[serde(default)]
    pub terminal: Option<Size>,
    /// Whether the client sends data on `STDIN`. If not, the standard input of the process is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Whether a process with pipes writes standard error into the same pipe as standard output, which preserves the
    /// order of the output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
    /// Whether the values of the bottle's secret variables are redacted in the output of an `Exec` process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redact: bool,
    /// The user inside the bottle, by name or number. If absent, the process runs as the agent's user.
    #[serde(default)]
    pub user: Option<String>,
    /// For the agent only: whether to buffer all output until the first client attaches. If false, the agent
    /// runs without waiting for a client, and the oldest output beyond
    /// [`SCROLLBACK`](super::guest::SCROLLBACK) is dropped.
    #[serde(default)]
    pub awaited: bool,
}

/// A terminal's size in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// The number of columns.
    pub columns: u16,
    /// The number of rows.
    pub rows: u16,
}

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Exit {
    /// The process exited with this code.
    Code(u8),
    /// The process was killed by this signal.
    Signal(u8),
}

impl Exit {
    /// Returns the exit code that a shell reports: 128 + n for signal n.
    #[must_use]
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}
