//! The state that a command line changes: variables, the directory, functions.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use brush_parser::ast::FunctionBody;

use crate::path::Place;
use crate::text::{NUMBER, SOMETHING, Text, UNKNOWN};

/// Variables that every shell sets, to a value that is not empty.
const SET: &[&str] = &[
    "BASHPID",
    "BASH_VERSION",
    "EUID",
    "GROUPS",
    "HOSTNAME",
    "LINENO",
    "LOGNAME",
    "OLDPWD",
    "OSTYPE",
    "PATH",
    "PPID",
    "RANDOM",
    "SECONDS",
    "SHELL",
    "TMPDIR",
    "UID",
    "USER",
];

/// The state of the shell at one point of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// The working directory, relative to the directory in which the command line starts.
    pub(crate) directory: String,
    /// The parameters of the script or function, if they are known.
    pub(crate) parameters: Option<Vec<Text>>,
    /// Functions by name.
    pub(crate) functions: HashMap<String, Rc<FunctionBody>>,
    /// Whether a command receives each file below the paths that it names, as a command that `find` runs does.
    pub(crate) descends: bool,
    /// Files that a command of the line downloads.
    pub(crate) downloads: HashSet<String>,
    variables: HashMap<String, Text>,
}

impl Default for Scope {
    fn default() -> Self {
        Self {
            directory: ".".to_owned(),
            parameters: None,
            functions: HashMap::new(),
            descends: false,
            downloads: HashSet::new(),
            variables: HashMap::new(),
        }
    }
}

impl Scope {
    /// The same state with other parameters, for a script or a function.
    pub(crate) fn with_parameters(&self, parameters: Option<Vec<Text>>) -> Self {
        let mut inner = self.clone();
        inner.parameters = parameters;
        inner
    }

    /// The value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Text {
        if let Some(value) = self.variables.get(name) {
            return value.clone();
        }
        match name {
            "HOME" => Text::known("~"),
            "PWD" => Text { is_approximate: true, ..Text::known(&self.directory) },
            "IFS" => Text::known(" "),
            name if SET.contains(&name) => Text::known(&SOMETHING.to_string()),
            _ => Text::unknown(),
        }
    }

    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &str, value: Text) {
        self.variables.insert(name.to_owned(), value);
    }

    /// Takes into account that the commands since `before` may have run or not, or may run again. A variable that they
    /// changed has no known value. The last value stays an approximation, so that the rules see it. Returns whether a
    /// variable was changed.
    pub(crate) fn blur(&mut self, before: &Self) -> bool {
        let mut is_changed = false;
        for (name, value) in &mut self.variables {
            let old = before.variables.get(name);
            if old == Some(&*value) {
                continue;
            }
            is_changed = true;
            if value.is_number() && old.is_some_and(Text::is_number) {
                *value = Text::known(&NUMBER.to_string());
            } else {
                value.is_approximate = true;
            }
        }
        is_changed
    }

    /// Adds the variables that `inner` set, for a command of which only some shells keep the variables.
    pub(crate) fn blur_with(&mut self, inner: Self) {
        let before = std::mem::replace(&mut self.variables, inner.variables);
        let before = Self { variables: before, ..self.clone() };
        self.blur(&before);
    }

    /// The parameter `$index`, from 1.
    pub(crate) fn parameter(&self, index: usize) -> Text {
        match &self.parameters {
            Some(all) => all.get(index.saturating_sub(1)).cloned().unwrap_or_default(),
            None => Text::unknown(),
        }
    }

    /// Changes the directory as `cd` with these arguments does.
    pub(crate) fn change_directory(&mut self, arguments: &[Text]) {
        let to = arguments.iter().find(|argument| !argument.value.starts_with('-') || argument.value == "-");
        self.directory = match to {
            None => "~".to_owned(),
            Some(to) if to.value == "-" || to.is_unknown() => UNKNOWN.to_string(),
            Some(to) => self.place(to).as_str().to_owned(),
        };
    }

    /// The path that a word names.
    pub(crate) fn place(&self, text: &Text) -> Place {
        Place::of(&text.value, &self.directory)
    }
}
