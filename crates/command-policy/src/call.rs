//! One command, with its words expanded.

use brush_parser::ast::IoFileRedirectKind;

use crate::path::Place;
use crate::scope::Scope;
use crate::text::Text;

/// The standard input of a command, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    /// The text of the input, if it is known.
    pub(crate) text: Option<Text>,
    /// Whether a preceding command of the pipeline downloads the input.
    pub(crate) is_download: bool,
    /// Whether a preceding command of the pipeline decodes or scrambles the input.
    pub(crate) is_hidden: bool,
    /// The paths that a preceding command of the pipeline lists.
    pub(crate) places: Vec<Text>,
    /// Whether each line of the input is the path of a file below the starting directory.
    pub(crate) lists_files: bool,
}

impl Source {
    /// Returns this output, followed by the output `next`.
    pub(crate) fn then(self, next: Self) -> Self {
        let text = match (self.text, next.text) {
            (Some(first), Some(second)) if !first.value.is_empty() => Some(Text {
                value: format!("{}\n{}", first.value, second.value),
                is_approximate: first.is_approximate || second.is_approximate,
                ..Text::default()
            }),
            (Some(_), second) => second,
            (None, _) => None,
        };
        Self {
            text,
            is_download: self.is_download || next.is_download,
            is_hidden: self.is_hidden || next.is_hidden,
            places: [self.places, next.places].concat(),
            // Another command may add other lines.
            lists_files: false,
        }
    }
}

/// A redirection of a command.
#[derive(Debug, Clone)]
pub(crate) struct Redirect {
    /// Whether the redirection may change the file.
    pub(crate) writes: bool,
    /// The word that names the file.
    pub(crate) file: Text,
}

impl Redirect {
    /// Creates a redirection of this kind.
    pub(crate) fn new(kind: &IoFileRedirectKind, file: Text) -> Self {
        Self { writes: !matches!(kind, IoFileRedirectKind::Read | IoFileRedirectKind::DuplicateInput), file }
    }
}

/// A command: its words, its input, and the state of the shell.
pub(crate) struct Call<'a> {
    /// The program and its arguments. The list is not empty.
    pub(crate) argv: &'a [Text],
    /// The name of the program, in lower case.
    pub(crate) program: &'a str,
    /// The input that the command reads.
    pub(crate) source: &'a Source,
    /// The state of the shell.
    pub(crate) scope: &'a Scope,
}

impl<'a> Call<'a> {
    /// The words after the program.
    pub(crate) fn arguments(&self) -> &'a [Text] {
        &self.argv[1..]
    }

    /// The arguments that are not options. After `--`, each argument is an operand.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &'a Text> + use<'a> {
        let mut all = false;
        self.arguments().iter().filter(move |argument| {
            if argument.value == "--" && !all {
                all = true;
                return false;
            }
            all || !argument.value.starts_with('-') || argument.value == "-"
        })
    }

    /// Whether an option is given: as one of the letters `short`, which may be in a group of letters, or as one of the
    /// names `long`, which may be abbreviated.
    pub(crate) fn has(&self, short: &[char], long: &[&str]) -> bool {
        let options = self
            .arguments()
            .iter()
            .map(|argument| argument.value.as_str())
            .take_while(|value| *value != "--");
        options.into_iter().any(|value| match value.strip_prefix("--") {
            Some(name) => {
                let name = name.split('=').next().unwrap_or_default();
                name.len() >= 3 && long.iter().any(|long| long.starts_with(name))
            }
            None => value.strip_prefix('-').is_some_and(|letters| letters.contains(short)),
        })
    }

    /// The path that a word names.
    pub(crate) fn place(&self, text: &Text) -> Place {
        self.scope.place(text)
    }
}
