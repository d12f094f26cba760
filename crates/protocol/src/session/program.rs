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

/// The error for a text that is not a [`Size`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a size is COLUMNSxROWS, as 120x30, each from 1 to {}", u16::MAX)]
pub struct BadSize;

impl std::str::FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0).ok_or(BadSize);
        let (columns, rows) = text.split_once('x').ok_or(BadSize)?;
        Ok(Self { columns: number(columns)?, rows: number(rows)? })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_numbers() {
        assert_eq!("120x30".parse(), Ok(Size { columns: 120, rows: 30 }));
        for text in ["", "120", "x", "120x", "x30", "0x30", "120x0", "120x65536", "-1x2", "1x2x3", "120 x 30"]
        {
            assert_eq!(text.parse::<Size>(), Err(BadSize), "{text:?}");
        }
    }
}
