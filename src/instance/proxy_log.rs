//! Lists the proxy's log files in a bottle's folder.

use std::path::{Path, PathBuf};

/// The maximum length in bytes of a line that readers accept. The proxy writes much shorter lines; readers split a
/// longer one into pieces, which cannot be parsed.
pub const LINE_MAX: u64 = 1 << 20;

/// The log files, oldest first: `egress.3.jsonl`, `egress.2.jsonl`, …, `egress.jsonl`.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
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
    fn lists_log_files_oldest_first() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["egress.jsonl", "egress.2.jsonl", "egress.10.jsonl", "egress.x.jsonl", "agent.log"] {
            std::fs::write(folder.path().join(name), "").expect("write");
        }
        let names: Vec<_> = files(folder.path())
            .iter()
            .map(|path| path.file_name().expect("name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["egress.10.jsonl", "egress.2.jsonl", "egress.jsonl"]);
    }
}
