//! Lists the proxy's log files in a bottle's directory, and reads the scanner's recent warnings from them.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bottle_host::plain_file;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The maximum length in bytes of a line that readers accept. The proxy writes much shorter lines; readers split a
/// longer line into pieces, which cannot be parsed.
pub const LINE_MAX: u64 = 1 << 20;

/// The maximum number of bytes at the end of the log that [`warnings`] reads. The limit is large because the proxy may
/// log much traffic after a warning. The limit exists because the log is read repeatedly while the user looks at the
/// warnings.
const WARNINGS_WITHIN: u64 = 1 << 20;

/// The maximum number of bytes at the end of the log that [`last_lines`] reads.
const LINES_WITHIN: u64 = 256 << 10;

/// The maximum number of warnings that [`warnings`] returns.
pub const MAX_WARNINGS: usize = 5;

/// A warning of the scanner: the proxy noticed something in a request or a response, but forwarded the request or
/// response. The fields contain text that the bottle chose. Known secrets in this text are redacted, as everywhere in
/// the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The time of the warning.
    pub time: Timestamp,
    /// The host of the request.
    pub host: String,
    /// The method of the request.
    #[serde(default)]
    pub method: String,
    /// The path of the request.
    #[serde(default)]
    pub path: String,
    /// What the scanner noticed, and where.
    pub found: String,
}

/// The verdict of the log lines that are warnings.
const NOTICED: &str = "\"noticed\"";

/// Returns the last [`MAX_WARNINGS`] warnings in the log, newest first. Skips lines that cannot be parsed, and files
/// that cannot be read. The log contains warnings only if the bottle's manifest lets the proxy log denials or requests.
#[must_use]
pub fn warnings(directory: &Path) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut left = WARNINGS_WITHIN;
    for path in files(directory).iter().rev() {
        let text = end_of(path, left).unwrap_or_default();
        left = left.saturating_sub(text.len() as u64);
        warnings.extend(text.lines().rev().filter_map(warning).take(MAX_WARNINGS - warnings.len()));
        if left == 0 || warnings.len() == MAX_WARNINGS {
            break;
        }
    }
    warnings
}

/// Returns the last lines of the log, newest first, at most `most`. Reads a limited part of the log, and skips files
/// that cannot be read.
#[must_use]
pub fn last_lines(directory: &Path, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = LINES_WITHIN;
    for path in files(directory).iter().rev() {
        let text = end_of(path, left).unwrap_or_default();
        left = left.saturating_sub(text.len() as u64);
        // An incomplete line at the beginning of the text is skipped, unless the text is the whole file.
        let begins = if left == 0 { text.find('\n').map_or(text.len(), |at| at + 1) } else { 0 };
        lines.extend(text[begins..].lines().rev().take(most - lines.len()).map(str::to_owned));
        if left == 0 || lines.len() == most {
            break;
        }
    }
    lines
}

/// Reads the last bytes of a file.
fn end_of(path: &Path, bytes: u64) -> std::io::Result<String> {
    let mut file = plain_file::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn warning(line: &str) -> Option<Warning> {
    #[derive(Deserialize)]
    struct Line {
        verdict: String,
        #[serde(flatten)]
        warning: Warning,
    }
    // Most lines are not warnings, and need not be parsed.
    let line: Line = line.contains(NOTICED).then(|| serde_json::from_str(line).ok())??;
    (line.verdict == "noticed").then_some(line.warning)
}

/// Returns the log files, oldest first: `egress.3.jsonl`, `egress.2.jsonl`, …, `egress.jsonl`.
#[must_use]
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            let age = name.to_str()?.strip_prefix("egress.")?.strip_suffix("jsonl")?;
            let age = if age.is_empty() { 0 } else { age.strip_suffix('.')?.parse().ok()? };
            Some((age, entry.path()))
        })
        .collect();
    files.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    files.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_last_warnings_newest_first() {
        let directory = tempfile::tempdir().expect("directory");
        let line = |host: &str, verdict: &str| {
            format!(
                "{{\"event\":\"request\",\"time\":\"2026-01-31T12:00:00Z\",\"bottle\":\"b\",\"verdict\":\"{verdict}\",\
                 \"host\":\"{host}\",\"port\":443,\"method\":\"GET\",\"path\":\"/\",\"found\":\"f\"}}\n"
            )
        };
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("write");
        let hosts = || warnings(directory.path()).into_iter().map(|warning| warning.host).collect::<Vec<_>>();
        assert_eq!(hosts(), [""; 0]);
        write("egress.1.jsonl", &(line("a", "noticed") + &line("b", "noticed") + &line("c", "noticed")));
        let newest = line("d", "noticed")
            + "\"noticed\"\n"
            + &line("x", "denied")
            + &line("\\\"noticed\\\"", "passed");
        write("egress.jsonl", &(newest + &line("e", "noticed") + &line("f", "noticed")));
        assert_eq!(hosts(), ["f", "e", "d", "c", "b"]);
        let filler = line("passed", "passed").repeat(16 << 10);
        write("egress.jsonl", &(line("old", "noticed") + &filler + &line("new", "noticed")));
        assert_eq!(hosts(), ["new"], "reads a limited part of the log");
    }

    #[test]
    fn reads_the_last_lines_newest_first() {
        let directory = tempfile::tempdir().expect("directory");
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("write");
        assert_eq!(last_lines(directory.path(), 3), [""; 0]);
        write("egress.1.jsonl", "a\nb\n");
        write("egress.jsonl", "c\nd\n");
        assert_eq!(last_lines(directory.path(), 3), ["d", "c", "b"]);
        write("egress.jsonl", &format!("{}\nlast\n", "x".repeat(512 << 10)));
        assert_eq!(last_lines(directory.path(), 3), ["last"], "reads a limited part of the log");
    }

    #[test]
    fn lists_log_files_oldest_first() {
        let directory = tempfile::tempdir().expect("directory");
        for name in ["egress.jsonl", "egress.2.jsonl", "egress.10.jsonl", "egress.x.jsonl", "agent.log"] {
            std::fs::write(directory.path().join(name), "").expect("write");
        }
        let names: Vec<_> = files(directory.path())
            .iter()
            .map(|path| path.file_name().expect("name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["egress.10.jsonl", "egress.2.jsonl", "egress.jsonl"]);
    }
}
