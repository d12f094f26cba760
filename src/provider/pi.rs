//! Pi.
//!
//! Facts read in its own documentation and measured with 0.73.1.

use bottle_contract::names::{PROMPT_FILE, TASK_FILE};

use super::{ArgvError, Provider, Run};

/// See the module.
pub(super) struct Pi;

impl Provider for Pi {
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let mut argv = vec!["pi".to_owned()];
        if run.has_prompt() {
            argv.extend(["--append-system-prompt".to_owned(), PROMPT_FILE.to_owned()]);
        }
        if run.resumed {
            argv.push("--continue".to_owned());
        }
        argv.extend(run.added());
        if !run.terminal {
            argv.push("--print".to_owned());
        }
        if run.task.is_some() {
            // It has no way to say that what follows is no option; a file it takes whole.
            argv.push(format!("@{TASK_FILE}"));
        }
        Ok(argv)
    }

    fn skills(&self) -> &'static str {
        ".pi/agent/skills"
    }

    /// One folder for each working directory, with one file for each conversation.
    fn transcript(&self) -> &'static [&'static str] {
        &[".pi/agent/sessions"]
    }
}
