//! Generates the history for the benchmark from clean files, labelled secrets, and lines that look like
//! secrets.

use std::collections::HashMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::clean::{self, KINDS, code};
use crate::dice::Dice;
use crate::secrets::{FAMILIES, Values};

/// The number of files in one commit.
const FILES: usize = 32;

/// The maximum number of files in the set of files that later commits may modify.
const KEPT: usize = 256;

/// The number of lines that look like secrets, for each kind of line.
const LOOK_ALIKES: usize = 10;

/// The number of lines in a log file with a secret in the middle.
const LOG_LINES: usize = 30_000;

/// The kind of location in which a secret is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a line of source code.
    Source,
    /// In a JSON value.
    Settings,
    /// In a script that the next commit deletes.
    Removed,
    /// In the middle of a log of several megabytes.
    Log,
    /// In a UTF-16 file.
    Wide,
    /// Encoded as base64 in a Kubernetes manifest.
    Encoded,
    /// In a commit message.
    Message,
}

impl Place {
    pub(crate) const ALL: [Self; 7] =
        [Self::Source, Self::Settings, Self::Removed, Self::Log, Self::Wide, Self::Encoded, Self::Message];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Settings => "settings",
            Self::Removed => "removed",
            Self::Log => "log",
            Self::Wide => "utf-16",
            Self::Encoded => "base64",
            Self::Message => "message",
        }
    }
}

/// A planted secret and its location.
#[derive(Debug)]
pub(crate) struct Label {
    /// The index of the secret's family in [`FAMILIES`].
    pub(crate) family: usize,
    pub(crate) place: Place,
    /// The path of the file with the secret. The file contains no other secret. Empty for a commit message.
    pub(crate) path: String,
    /// The lines of the secret, counted from 1.
    pub(crate) lines: RangeInclusive<u64>,
    /// The commit that adds the secret.
    pub(crate) commit: String,
}

/// A generated history, and the labels of its planted secrets.
pub(crate) struct History {
    /// The path of the history's bare repository.
    pub(crate) repo: PathBuf,
    /// A directory with every file of every commit, in a subdirectory for each commit. Scanners that support only files
    /// read this directory.
    pub(crate) files: PathBuf,
    pub(crate) labels: Vec<Label>,
    pub(crate) look_alikes: usize,
    pub(crate) commits: usize,
    pub(crate) count: usize,
    /// The total size of all files in the history, in bytes.
    pub(crate) bytes: u64,
}

impl History {
    /// Generates a history of about `bytes` bytes in `directory`.
    pub(crate) fn make(directory: &Path, bytes: u64) -> Result<Self> {
        let mut maker = Maker::new(directory)?;
        let mut planted = plan(&mut maker.dice);
        let step = bytes / (planted.len() as u64 + 1);
        while maker.history.bytes < bytes {
            maker.clean_file()?;
            while !planted.is_empty() && maker.history.bytes > step * (maker.planted + 1) {
                maker.planted += 1;
                match planted.pop() {
                    Some(Planted::Secret(family, place)) => maker.secret(family, place)?,
                    Some(Planted::LookAlike(kind)) => maker.look_alike(kind)?,
                    None => {}
                }
            }
            if maker.changes.len() >= FILES {
                maker.commit()?;
            }
        }
        ensure!(planted.is_empty(), "{bytes} bytes are too few for all that is planted");
        // The second commit deletes the [`Place::Removed`] files that the first commit may have added.
        maker.commit()?;
        maker.commit()?;
        maker.finish()
    }
}

enum Planted {
    Secret(usize, Place),
    LookAlike(usize),
}

/// Returns all secrets and look-alikes to plant, in random order.
fn plan(dice: &mut Dice) -> Vec<Planted> {
    let secrets =
        (0..FAMILIES.len()).flat_map(|family| Place::ALL.map(|place| Planted::Secret(family, place)));
    let mut all: Vec<Planted> = secrets.chain((0..KINDS * LOOK_ALIKES).map(Planted::LookAlike)).collect();
    for end in (1..all.len()).rev() {
        all.swap(end, dice.below(end + 1));
    }
    all
}

/// The path and the new content of a file in the next commit. If the content is `None`, the commit deletes the file.
type Change = (String, Option<Vec<u8>>);

struct Maker {
    dice: Dice,
    import: Child,
    into: BufWriter<ChildStdin>,
    changes: Vec<Change>,
    /// The lines of the next commit's message.
    message: Vec<String>,
    /// The files that the commit after the next one deletes.
    removed: Vec<String>,
    /// The paths and contents of the files that later commits may modify.
    kept: Vec<(String, String)>,
    /// The index of each label's commit.
    numbers: Vec<usize>,
    planted: u64,
    history: History,
}

impl Maker {
    fn new(directory: &Path) -> Result<Self> {
        let (repo, files) = (directory.join("history.git"), directory.join("files"));
        git(Command::new("git").args(["init", "-q", "--bare", "-b", "main"]).arg(&repo))?;
        let mut import = Command::new("git")
            .arg("-C")
            .arg(&repo)
            .args(["fast-import", "--quiet"])
            .stdin(Stdio::piped())
            .spawn()?;
        let into = BufWriter::with_capacity(1 << 20, import.stdin.take().context("an input")?);
        Ok(Self {
            dice: Dice::new(),
            import,
            into,
            changes: Vec::new(),
            message: Vec::new(),
            removed: Vec::new(),
            kept: Vec::new(),
            numbers: Vec::new(),
            planted: 0,
            history: History {
                repo,
                files,
                labels: Vec::new(),
                look_alikes: 0,
                commits: 0,
                count: 0,
                bytes: 0,
            },
        })
    }

    fn add(&mut self, path: String, content: Vec<u8>) {
        self.history.bytes += content.len() as u64;
        self.history.count += 1;
        self.changes.push((path, Some(content)));
    }

    /// Returns a path for a new file with the extension `end`.
    fn path(&mut self, end: &str) -> String {
        format!("src/part{:02}/file{}.{end}", self.dice.below(100), self.history.count)
    }

    /// Adds a new file. In one of three calls on average, modifies an old file instead.
    fn clean_file(&mut self) -> Result<()> {
        if self.kept.len() == KEPT && self.dice.below(3) == 0 {
            let at = self.dice.below(KEPT);
            let (path, text) = &mut self.kept[at];
            // A commit modifies each file at most once.
            if self.changes.iter().all(|(other, _)| other != path) {
                let middle = text[..text.len() / 2].rfind('\n').map_or(0, |at| at + 1);
                text.insert_str(middle, &code(&mut self.dice, 400));
                let (path, content) = (path.clone(), text.clone().into_bytes());
                self.add(path, content);
                return Ok(());
            }
        }
        let length = [2 << 10, 8 << 10, 16 << 10, 48 << 10][self.dice.below(4)];
        let (end, content) = clean::file(&mut self.dice, length);
        let path = self.path(end);
        if end == "rs" {
            let slot = (path.clone(), String::from_utf8(content.clone())?);
            if self.kept.len() < KEPT {
                self.kept.push(slot);
            } else {
                let at = self.dice.below(KEPT);
                self.kept[at] = slot;
            }
        }
        self.add(path, content);
        Ok(())
    }

    fn look_alike(&mut self, kind: usize) -> Result<()> {
        let (before, after) = (code(&mut self.dice, 1500), code(&mut self.dice, 1500));
        let line = clean::look_alike(&mut self.dice, kind);
        let path = self.path("txt");
        self.history.look_alikes += 1;
        self.add(path, format!("{before}{line}\n{after}").into_bytes());
        Ok(())
    }

    fn secret(&mut self, family: usize, place: Place) -> Result<()> {
        let values = FAMILIES[family].make(&mut self.dice)?;
        if place == Place::Message {
            // The commit message with the secret gets a separate commit.
            self.commit()?;
            let lines = values.iter().map(|(name, value)| format!("{name}: {value}"));
            self.message = [vec!["It works with these".to_owned(), String::new()], lines.collect()].concat();
            let path = self.path("rs");
            let content = code(&mut self.dice, 2000);
            self.add(path, content.into_bytes());
            self.label(family, place, String::new(), 1..=u64::MAX);
            return self.commit();
        }
        let (end, before, middle, after) = written(&mut self.dice, place, &values);
        let first = before.matches('\n').count() as u64 + 1;
        let lines = first..=first + middle.trim_end().matches('\n').count() as u64;
        let text = before + &middle + &after;
        // In a Kubernetes manifest, a finding may name any line.
        let lines = if place == Place::Encoded { 1..=text.lines().count() as u64 } else { lines };
        let content = if place == Place::Wide { wide(&text) } else { text.into_bytes() };
        let path = self.path(end);
        if place == Place::Removed {
            self.removed.push(path.clone());
        }
        self.label(family, place, path.clone(), lines);
        self.add(path, content);
        Ok(())
    }

    fn label(&mut self, family: usize, place: Place, path: String, lines: RangeInclusive<u64>) {
        self.numbers.push(self.history.commits);
        self.history.labels.push(Label { family, place, path, lines, commit: String::new() });
    }

    fn commit(&mut self) -> Result<()> {
        let number = self.history.commits;
        self.history.commits += 1;
        let lines = std::mem::take(&mut self.message);
        let message = if lines.is_empty() { format!("Change {number}") } else { lines.join("\n") };
        write!(
            self.into,
            "commit refs/heads/main\ncommitter A <a@example.com> {} +0000\ndata {}\n{message}\n",
            1_700_000_000 + number,
            message.len()
        )?;
        let removed: Vec<String> = self
            .changes
            .iter()
            .map(|(path, _)| path)
            .filter(|path| self.removed.contains(path))
            .cloned()
            .collect();
        for (path, content) in std::mem::take(&mut self.changes) {
            let Some(content) = content else {
                writeln!(self.into, "D {path}")?;
                continue;
            };
            writeln!(self.into, "M 100644 inline {path}\ndata {}", content.len())?;
            self.into.write_all(&content)?;
            writeln!(self.into)?;
            let file = self.history.files.join(number.to_string()).join(path);
            fs::create_dir_all(file.parent().context("a directory")?)?;
            fs::write(file, content)?;
        }
        self.removed.clear();
        self.changes.extend(removed.into_iter().map(|path| (path, None)));
        Ok(())
    }

    fn finish(self) -> Result<History> {
        let Self { mut import, into, mut history, numbers, .. } = self;
        drop(into);
        ensure!(import.wait()?.success(), "git fast-import");
        let listed = Command::new("git")
            .arg("-C")
            .arg(&history.repo)
            .args(["rev-list", "--reverse", "--first-parent", "main"])
            .output()?;
        let commits: HashMap<usize, &str> =
            std::str::from_utf8(&listed.stdout)?.lines().enumerate().collect();
        for (label, number) in history.labels.iter_mut().zip(numbers) {
            label.commit = (*commits.get(&number).context("a commit")?).to_owned();
        }
        Ok(history)
    }
}

fn git(command: &mut Command) -> Result<()> {
    ensure!(command.status()?.success(), "{command:?}");
    Ok(())
}

/// Returns the extension of a file and three parts of its text: before the secret, with the secret, and after the
/// secret.
fn written(dice: &mut Dice, place: Place, values: &Values) -> (&'static str, String, String, String) {
    let lines = |line: &dyn Fn(&str, &str) -> String| -> String {
        values.iter().map(|(name, value)| line(name, value) + "\n").collect()
    };
    match place {
        Place::Source => {
            let middle = lines(&|name, value| format!("const {}: &str = \"{value}\";", name.to_uppercase()));
            ("rs", code(dice, 6000), middle, code(dice, 6000))
        }
        Place::Settings => {
            let middle = lines(&|name, value| format!("  \"{name}\": \"{}\",", value.replace('\n', "\\n")));
            ("json", "{\n  \"name\": \"app\",\n".to_owned(), middle, "  \"port\": 8080\n}\n".to_owned())
        }
        Place::Removed => {
            let middle = lines(&|name, value| format!("export {}='{value}'", name.to_uppercase()));
            ("sh", "#!/bin/sh\nset -e\n".to_owned(), middle, "exec app --port 8080\n".to_owned())
        }
        Place::Log => {
            let middle =
                lines(&|name, value| format!("2026-05-01T10:00:00Z DEBUG start with {name}={value}"));
            ("log", log(dice), middle, log(dice))
        }
        Place::Wide => {
            let middle = lines(&|name, value| format!("{name}={value}"));
            ("ini", "[app]\nport=8080\n".to_owned(), middle, "[log]\nlevel=info\n".to_owned())
        }
        Place::Encoded => {
            let middle = lines(&|name, value| {
                format!("  {}: {}", name.replace('_', "-"), BASE64_STANDARD.encode(value))
            });
            ("yaml", "apiVersion: v1\nkind: Secret\ndata:\n".to_owned(), middle, "type: Opaque\n".to_owned())
        }
        Place::Message => ("", String::new(), String::new(), String::new()),
    }
}

fn log(dice: &mut Dice) -> String {
    (0..LOG_LINES / 2)
        .map(|at| {
            format!("2026-05-01T10:00:00Z INFO request {at} of {} took {} ms\n", dice.uuid(), dice.below(900))
        })
        .collect()
}

fn wide(text: &str) -> Vec<u8> {
    let text = format!("\u{feff}{}", text.replace('\n', "\r\n"));
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}
