//! `bottle attach`: connects the terminal to a running agent.

use bottle_host::{Host, Settings};
use bottle_instance::{State, Store};
use bottle_lib::bottles::is_running;
use bottle_policy::names::Slug;

use super::candidates;
use super::client::{Client, on_terminal, title};
use super::connect::connect;
use super::select_bottle::Question;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::terminal;
use crate::screens::session::Style;

/// Attach to a running agent: show its recent output, then follow it
///
/// If the agent ends while you are attached, this command exits with the agent's exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = candidates::running())]
    slug: Option<Slug>,
    /// Watch without sending input; Ctrl-C detaches
    #[arg(long)]
    read_only: bool,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Attach to which bottle?",
    suits: is_running,
    none: "no bottle is running",
    hint: "`bottle start` starts one",
};

impl Attach {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        let slug = BOTTLE_QUESTION.select(self.slug, host, output)?;
        block_on(async {
            let channel = connect(host, &slug).await?;
            let (terminal, title, color) = match Store::of(host).state(&slug) {
                Some(State::Alive(record)) => (
                    record.terminal,
                    title(record.label.as_deref(), &record.slug, &record.agent),
                    record.color,
                ),
                _ => (false, slug.to_string(), None),
            };
            if terminal && !terminal::is_terminal() && !self.read_only {
                return Err(CliError::usage("cannot attach: the agent needs a terminal, and there is none")
                    .about(&slug)
                    .hint(format!("`bottle logs --follow {slug}` shows its output")));
            }
            let style = if terminal && terminal::is_terminal() {
                on_terminal(&settings, title, color, self.read_only)
            } else {
                Style::Pipes { stdin: !self.read_only && !terminal, pass_signals: false }
            };
            let host = host.clone();
            let client = Client { host, channel, slug, owns_bottle: false, pass: settings.terminal_pass };
            client.run(style, self.read_only, &mut Signals::catch()?, output).await
        })
    }
}
