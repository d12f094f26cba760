//! The effects of a command line, and whether it may run.

use std::borrow::Cow;
use std::sync::mpsc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::mode::Mode;
use crate::path::Place;
use crate::rules::{self, Rule};
use crate::syntax::{Dialect, Unreadable};
use crate::walk::Walk;

/// The stack size of the parser's thread, in bytes. The parser is recursive. Only the used part of the stack takes
/// memory.
const STACK: usize = 128 << 20;
/// The time limit of the parser.
const TIME: Duration = Duration::from_secs(5);
/// The longest description of a command in a finding, in characters.
const MAX_SHOWN: usize = 200;

/// Variables to set for a command that may run because it was proved to only read. The variables prevent a repository
/// from making git run programs or write files, and `less` from running programs or writing files.
pub const READ_ONLY_ENVIRONMENT: &[(&str, &str)] = &[
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_PAGER", "cat"),
    ("PAGER", "cat"),
    ("GIT_EXTERNAL_DIFF", ""),
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LESSSECURE", "1"),
    ("LESSOPEN", ""),
    ("LESSHISTFILE", "-"),
    ("GIT_CONFIG_COUNT", "4"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "core.hooksPath"),
    ("GIT_CONFIG_VALUE_1", "/dev/null"),
    ("GIT_CONFIG_KEY_2", "core.pager"),
    ("GIT_CONFIG_VALUE_2", "cat"),
    ("GIT_CONFIG_KEY_3", "log.showSignature"),
    ("GIT_CONFIG_VALUE_3", "false"),
];

/// One effect of a command line that a rule reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule that reports the effect.
    pub rule: Rule,
    /// The words of the command that has the effect. `…` replaces each part that is known only when the command runs. A
    /// literal `…` in the command is written as `\…`, so that an approval of an unknown part does not approve a literal
    /// `…`, or the reverse.
    pub command: Vec<String>,
    /// Why the rule applies: a clause without a subject, such as `deletes /etc`.
    pub why: String,
}

impl Finding {
    /// The command on one line, truncated if it is long.
    #[must_use]
    pub fn shown(&self) -> String {
        shown(&self.command)
    }
}

/// The words of a command on one line, quoted for a shell, and truncated if the line is long.
#[must_use]
pub fn shown(words: &[String]) -> String {
    let quoted = |word: &String| shlex::try_quote(word).map_or_else(|_| word.clone(), Cow::into_owned);
    let line = words.iter().map(quoted).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An approval of findings for which the modes ask the user. Findings of the floor (the rules that deny in each mode)
/// cannot be approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The rule whose findings are approved.
    pub rule: Rule,
    /// The first words of the commands that are approved.
    pub prefix: Vec<String>,
}

impl Approval {
    /// Whether the approval applies to a finding.
    #[must_use]
    pub fn covers(&self, finding: &Finding) -> bool {
        !self.prefix.is_empty() && self.rule == finding.rule && finding.command.starts_with(&self.prefix)
    }
}

/// Whether a command line may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The command line may run.
    Allow,
    /// The command line may run if the user approves each of these findings.
    Ask(Vec<Finding>),
    /// The command line may not run, because these findings belong to the floor.
    Deny(Vec<Finding>),
}

/// The effects of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// The findings, in the order of the command line. The list is empty if the line only reads.
    pub findings: Vec<Finding>,
    /// Whether the line was proved to only read files and print.
    pub is_read_only: bool,
}

impl Assessment {
    /// Decides whether the command line may run. `approvals` are the approvals of the session and of the settings.
    #[must_use]
    pub fn decide(&self, mode: Mode, approvals: &[Approval]) -> Decision {
        let denied: Vec<Finding> =
            self.findings.iter().filter(|finding| finding.rule.is_floor()).cloned().collect();
        if !denied.is_empty() {
            return Decision::Deny(denied);
        }
        if self.is_read_only {
            return Decision::Allow;
        }
        let asks = |finding: &&Finding| {
            let is_asked = match finding.rule {
                Rule::Unreadable => true,
                Rule::ChangeFile => mode == Mode::BabySitter,
                _ => mode != Mode::LetItGo,
            };
            is_asked && !approvals.iter().any(|approval| approval.covers(finding))
        };
        let asked: Vec<Finding> = self.findings.iter().filter(asks).cloned().collect();
        if asked.is_empty() { Decision::Allow } else { Decision::Ask(asked) }
    }
}

/// Assesses a command line for `sh`, `bash` and `zsh`. If the shells parse the line differently, the assessment
/// contains the findings for all of them.
///
/// A line that cannot be parsed has the finding [`Rule::Unreadable`], which needs approval in each mode.
#[must_use]
pub fn assess(line: &str) -> Assessment {
    let unreadable = |why: &Unreadable| Assessment {
        findings: vec![Finding {
            rule: Rule::Unreadable,
            command: unreadable_words(line),
            why: format!("cannot be read: {why}"),
        }],
        is_read_only: false,
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    let owned = line.to_owned();
    // The parser runs in a thread that has a large stack. The thread ends when the parser ends. The parser exceeds
    // `TIME` only for absurd input.
    let thread =
        std::thread::Builder::new().name("command-policy".to_owned()).stack_size(STACK).spawn(move || {
            let _ = sender.send(assess_here(&owned));
        });
    match thread.map(|_| receiver.recv_timeout(TIME)) {
        Ok(Ok(Ok(assessment))) => assessment,
        Ok(Ok(Err(why))) => unreadable(&why),
        Ok(Err(_)) | Err(_) => unreadable(&Unreadable::TooComplex),
    }
}

/// Assesses a call of a tool that changes files without a command: `tool` is its name, and `paths` are the files,
/// relative to the workspace. If `paths` is empty, the tool may change any file.
#[must_use]
pub fn assess_file_change(tool: &str, paths: &[String]) -> Assessment {
    let change = |path: Option<&String>| Finding {
        rule: Rule::ChangeFile,
        command: std::iter::once(tool).chain(path.map(String::as_str)).map(str::to_owned).collect(),
        why: "changes a file".to_owned(),
    };
    let mut findings: Vec<Finding> = Vec::new();
    for path in paths {
        let floor = rules::file(&Place::of(path, "."), true);
        findings.extend(floor.map(|(rule, why)| Finding { rule, why, ..change(Some(path)) }));
        findings.push(change(Some(path)));
    }
    if findings.is_empty() {
        findings.push(change(None));
    }
    Assessment { findings, is_read_only: false }
}

/// The words of a line that cannot be parsed: the line, or its beginning and a digest of the whole line. An approval
/// therefore applies only to this line.
fn unreadable_words(line: &str) -> Vec<String> {
    match line.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => {
            let digest = HEXLOWER.encode(&Sha256::digest(line));
            vec![line[..end].to_owned(), format!("sha256:{digest}")]
        }
        None => vec![line.to_owned()],
    }
}

/// Assesses a command line on the stack of the calling thread.
fn assess_here(line: &str) -> Result<Assessment, Unreadable> {
    let mut bash = Walk::of(line, Dialect::Bash)?;
    // If the grammar of the POSIX shell does not accept the line, the line does not run in that shell.
    if let Ok(sh) = Walk::of(line, Dialect::Sh) {
        bash.is_read_only &= sh.is_read_only;
        for finding in sh.findings {
            if !bash.findings.contains(&finding) {
                bash.findings.push(finding);
            }
        }
    }
    Ok(bash)
}
