//! Codex.
//!
//! Facts measured with 0.169.0.

use super::{ArgvError, Provider, Run, task_argument};

/// See the module.
pub(super) struct Codex;

impl Provider for Codex {
    /// The bottle is the sandbox: codex's own cannot start in it, and nobody is asked.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let words: &[&str] = match (run.terminal, run.resumed) {
            (true, false) => &["codex"],
            // What was done without a terminal counts as a conversation to go on with, too.
            (true, true) => &["codex", "resume", "--last", "--include-non-interactive"],
            (false, false) => &["codex", "exec", "--skip-git-repo-check"],
            (false, true) => &["codex", "exec", "resume", "--last", "--skip-git-repo-check"],
        };
        let mut argv: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        argv.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
        argv.extend(run.added());
        if let Some(task) = run.task {
            // Behind `--`, so that a task that begins with a dash is no option.
            argv.extend(["--".to_owned(), task_argument(task)?]);
        }
        Ok(argv)
    }

    fn skills(&self) -> &'static str {
        ".codex/skills"
    }

    /// One file for each conversation, by day. The databases beside it are made again from these.
    fn transcript(&self) -> &'static [&'static str] {
        &[".codex/sessions"]
    }
}
