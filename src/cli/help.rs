//! `bottle help`: shows all commands, the flags of one command, or a topic. Topics are pages of `docs/`.

use super::command_groups;
use super::page::render;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use bottle_text::suggest::suggest;

/// Show help on all commands, one command, or a topic
#[derive(Debug, clap::Args)]
#[command(after_help = topics())]
pub(crate) struct Help {
    /// A command or a topic
    words: Vec<String>,
}

/// A page of `docs/`, compiled into the program.
pub(crate) struct Topic {
    /// The topic's name on the command line.
    pub(crate) name: &'static str,
    about: &'static str,
    /// The page as Markdown.
    pub(crate) text: &'static str,
}

/// Builds one [`Topic`] for each listed page of `docs/`.
macro_rules! topics {
    ($($name:literal: $about:literal),+ $(,)?) => {
        &[$(Topic { name: $name, about: $about, text: include_str!(concat!("../../docs/", $name, ".md")) }),+]
    };
}

pub(crate) const TOPICS: &[Topic] = topics!(
    "manifests": "the keys of agent and bottle manifests",
    "routes": "what a bottle may reach",
    "backends": "how bottles are isolated",
    "threat-model": "what bottle protects, and from whom",
    "supply-chain": "whose code and data bottle builds in, installs and runs",
    "coming-from": "bot-bottle, dev containers, docker run, hermes-agent",
    "commands": "all commands, by task",
    "exit-codes": "the exit codes of all commands",
);

impl Help {
    /// Shows the help of all commands, of one command, or a topic.
    pub(crate) fn run(self, mut command: clap::Command, output: &Output) -> Result<u8, CliError> {
        command.build();
        match self.words.first() {
            None => output.print(&format!("{}\n{}", command.render_long_help(), topics()))?,
            Some(word) => match TOPICS.iter().find(|topic| topic.name == word) {
                Some(topic) => output.print(&render(topic.text, output.styles()))?,
                None => output.print(&of_command(&command, &self.words)?)?,
            },
        }
        Ok(exit::DONE)
    }
}

fn of_command(root: &clap::Command, words: &[String]) -> Result<String, CliError> {
    let mut command = root;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| unknown(command, word))?;
    }
    Ok(command.clone().render_long_help().to_string())
}

fn unknown(command: &clap::Command, word: &str) -> CliError {
    let commands = command.get_subcommands().map(clap::Command::get_name);
    let known: Vec<&str> = commands.chain(TOPICS.iter().map(|topic| topic.name)).collect();
    let hint = match suggest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `bottle help {near}`?"),
        None => command_groups::suggestion(word)
            .unwrap_or_else(|| "`bottle help` lists commands and topics".to_owned()),
    };
    CliError::usage(format!("no command or topic is named `{word}`")).about(word).hint(hint)
}

fn topics() -> String {
    let lines = TOPICS.iter().map(|topic| format!("\n  {:<12} {}", topic.name, topic.about));
    format!("Topics:{}", lines.collect::<String>())
}
