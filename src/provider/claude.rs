//! Claude Code.
//!
//! Facts measured with 2.1.328, see each constant.

use bottle_contract::names::PROMPT_FILE;

use super::{ArgvError, Provider, Run, task_argument};

/// See the module.
pub(super) struct Claude;

impl Provider for Claude {
    /// The bottle is the sandbox: asking a person before every tool is left out.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let mut argv = vec!["claude".to_owned(), "--dangerously-skip-permissions".to_owned()];
        if run.has_prompt() {
            argv.extend(["--append-system-prompt-file".to_owned(), PROMPT_FILE.to_owned()]);
        }
        if run.resumed {
            argv.push("--continue".to_owned());
        }
        argv.extend(run.added());
        if !run.terminal {
            argv.push("--print".to_owned());
        }
        if let Some(task) = run.task {
            // Behind `--`, so that a task that begins with a dash is no option.
            argv.extend(["--".to_owned(), task_argument(task)?]);
        }
        Ok(argv)
    }

    fn skills(&self) -> &'static str {
        ".claude/skills"
    }

    /// One folder for each working directory, with the conversations and what it remembers of it.
    fn transcript(&self) -> &'static [&'static str] {
        &[".claude/projects"]
    }
}
