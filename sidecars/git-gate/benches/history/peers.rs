//! Describes other scanners by their command lines and the parsers of their output.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::history::History;

/// A finding of a scanner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Finding {
    pub(crate) commit: Option<String>,
    /// The path of the file. `None` for a commit message.
    pub(crate) path: Option<String>,
    pub(crate) line: Option<u64>,
    pub(crate) rule: String,
}

/// Another secret scanner.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// The argument that makes the scanner print its version.
    pub(crate) version: &'static str,
    /// Whether the scanner supports only files. Such a scanner reads every file of every commit, but no commit
    /// messages.
    pub(crate) files: bool,
    pub(crate) command: fn(PathBuf, &History) -> Command,
    pub(crate) read: fn(&str, &History) -> Result<Vec<Finding>>,
}

pub(crate) const PEERS: [Peer; 6] = [
    Peer { name: "gitleaks", version: "version", files: false, command: gitleaks, read: read_gitleaks },
    Peer {
        name: "betterleaks",
        version: "--version",
        files: false,
        command: betterleaks,
        read: read_betterleaks,
    },
    Peer {
        name: "kingfisher",
        version: "--version",
        files: false,
        command: kingfisher,
        read: read_kingfisher,
    },
    Peer {
        name: "trufflehog",
        version: "--version",
        files: false,
        command: trufflehog,
        read: read_trufflehog,
    },
    Peer {
        name: "detect-secrets",
        version: "--version",
        files: true,
        command: detect_secrets,
        read: read_detect_secrets,
    },
    Peer {
        name: "secretlint",
        version: "--version",
        files: true,
        command: secretlint,
        read: read_secretlint,
    },
];

fn gitleaks(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command.args(["git", "--no-banner", "--report-format", "json", "--report-path", "-"]);
    // Archives are included, because the gate scans them too.
    command.args(["--max-archive-depth", "1"]).arg(&history.repo);
    command
}

fn read_gitleaks(output: &str, _: &History) -> Result<Vec<Finding>> {
    let found: Vec<Value> = serde_json::from_str(output)?;
    Ok(found
        .iter()
        .map(|one| finding(&one["Commit"], &one["File"], &one["StartLine"], &one["RuleID"]))
        .collect())
}

fn betterleaks(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command.args(["git", "--no-banner", "--output", "-"]).arg(&history.repo);
    command
}

fn read_betterleaks(output: &str, _: &History) -> Result<Vec<Finding>> {
    let output: Value = serde_json::from_str(output)?;
    let found = output["findings"].as_array().context("findings")?.iter().map(|one| {
        let (location, attributes) = (&one["location"], &one["attributes"]);
        finding(&attributes["git.sha"], &location["path"], &location["start_line"], &one["rule_id"])
    });
    Ok(found.collect())
}

fn kingfisher(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command.args(["scan", "--format", "json", "--no-validate", "--no-update-check", "--quiet"]);
    command.arg(&history.repo);
    command
}

fn read_kingfisher(output: &str, _: &History) -> Result<Vec<Finding>> {
    let output: Value = serde_json::from_str(output)?;
    let found = output["findings"].as_array().context("findings")?.iter().map(|one| {
        let (rule, one) = (&one["rule"]["id"], &one["finding"]);
        finding(&one["git_metadata"]["commit"]["id"], &one["path"], &one["line"], rule)
    });
    Ok(found.collect())
}

fn trufflehog(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command.args(["--json", "--regex"]).arg(format!("file://{}", history.repo.display()));
    command
}

/// Parses TruffleHog's output. Each line contains one finding. Findings in files have no line numbers.
fn read_trufflehog(output: &str, _: &History) -> Result<Vec<Finding>> {
    let found = output.lines().map(|line| {
        let one: Value = serde_json::from_str(line)?;
        Ok(finding(&one["commitHash"], &one["path"], &Value::Null, &one["reason"]))
    });
    found.collect()
}

fn detect_secrets(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command.args(["--cores", "2", "scan", "--all-files", "."]).current_dir(&history.files);
    command
}

fn read_detect_secrets(output: &str, _: &History) -> Result<Vec<Finding>> {
    let output: Value = serde_json::from_str(output)?;
    let found = output["results"].as_object().context("results")?.iter().flat_map(|(file, found)| {
        let all = found.as_array().into_iter().flatten();
        all.map(|one| finding(&Value::Null, &below(file), &one["line_number"], &one["type"]))
    });
    Ok(found.collect())
}

fn secretlint(program: PathBuf, history: &History) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--secretlintrcJSON", r#"{"rules":[{"id":"@secretlint/secretlint-rule-preset-recommend"}]}"#]);
    command.args(["--format", "unix", "**/*"]).current_dir(&history.files);
    command
}

/// Parses secretlint's output. Each line has the form `file:line:column: words`.
fn read_secretlint(output: &str, history: &History) -> Result<Vec<Finding>> {
    let directory = format!("{}/", history.files.canonicalize()?.display());
    let found = output.lines().filter_map(|line| {
        let mut words = line.strip_prefix(&directory)?.splitn(4, ':');
        let (file, line) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let rule = words.nth(1)?.split('[').next_back()?;
        Some(finding(&Value::Null, &below(file), &line.into(), &rule.into()))
    });
    Ok(found.collect())
}

/// Removes the directory of the commit from a file's path.
fn below(file: &str) -> Value {
    file.trim_start_matches("./").split_once('/').map_or(file, |(_, path)| path).into()
}

fn finding(commit: &Value, path: &Value, line: &Value, rule: &Value) -> Finding {
    Finding {
        commit: commit.as_str().map(str::to_owned),
        path: path.as_str().filter(|path| !path.is_empty()).map(str::to_owned),
        line: line.as_u64(),
        rule: rule.as_str().unwrap_or_default().to_owned(),
    }
}

/// Parses the output of [`crate::ours::read_all`], which runs the gate's scan.
pub(crate) fn read_ours(output: &str) -> Result<Vec<Finding>> {
    let found = output.lines().map(|line| {
        let one: Value = serde_json::from_str(line)?;
        Ok(finding(&one["commit"], &one["path"], &one["line"], &one["rule"]))
    });
    found.collect()
}

/// Returns the path of a scanner's program, if one of the directories contains the program.
pub(crate) fn program(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    directories
        .iter()
        .map(|directory: &PathBuf| directory.join(name))
        .find(|path: &PathBuf| Path::is_file(path))
}
