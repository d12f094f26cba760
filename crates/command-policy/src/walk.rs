//! Walks over the commands of a line in the order in which they run.

use std::rc::Rc;

use brush_parser::ast::{
    self, AndOr, AndOrList, AssignmentName, AssignmentValue, BinaryPredicate, Command,
    CommandPrefixOrSuffixItem as Item, CompoundCommand, CompoundList, ExtendedTestExpr, IoFileRedirectTarget,
    IoRedirect, Pipeline, SeparatorOperator, SimpleCommand, UnaryPredicate,
};

use crate::assessment::{Assessment, Finding};
use crate::call::{Redirect, Source};
use crate::rules::Rule;
use crate::scope::Scope;
use crate::syntax::{Dialect, Unreadable, parse};
use crate::text::{NUMBER, SOMETHING, Text, UNKNOWN};
use crate::variables;

/// The maximum number of commands that are checked. The commands of loops and functions are counted each time that they
/// run.
const MAX_COMMANDS: usize = 2_000;
/// The maximum nesting of scripts and commands in other commands.
const MAX_DEPTH: usize = 12;
/// The maximum number of values of a loop's variable that are checked.
const MAX_VALUES: usize = 16;

/// The state of a walk.
pub(crate) struct Walk {
    pub(crate) dialect: Dialect,
    pub(crate) findings: Vec<Finding>,
    pub(crate) is_read_only: bool,
    /// Whether the command that runs next is an inner command, and the proof of its wrapper included it.
    pub(crate) is_inner_proved: bool,
    /// The functions whose bodies are being checked.
    pub(crate) inside: Vec<String>,
    /// The number of enclosing constructs that run in parallel with other commands.
    pub(crate) beside: usize,
    /// The number of enclosing loops that are endless and do not pause.
    endless: usize,
    depth: usize,
    commands: usize,
    failure: Option<Unreadable>,
}

/// The words, redirections and assignments of a simple command.
#[derive(Default)]
pub(crate) struct Simple {
    pub(crate) argv: Vec<Text>,
    pub(crate) redirects: Vec<Redirect>,
    pub(crate) assignments: Vec<(String, Text)>,
    /// The input that the redirections of the command provide.
    pub(crate) source: Option<Source>,
}

impl Walk {
    /// Walks over a command line.
    pub(crate) fn of(line: &str, dialect: Dialect) -> Result<Assessment, Unreadable> {
        let mut walk = Self {
            dialect,
            findings: Vec::new(),
            is_read_only: true,
            is_inner_proved: false,
            inside: Vec::new(),
            beside: 0,
            endless: 0,
            depth: 0,
            commands: 0,
            failure: None,
        };
        walk.program(&parse(line, dialect)?, Source::default(), &mut Scope::default());
        match walk.failure {
            Some(failure) => Err(failure),
            None => {
                // A line that is not read-only needs a finding, so that it can be approved.
                if !walk.is_read_only && walk.findings.is_empty() {
                    walk.found(Rule::Command, &[Text::known(line.trim())], "was not proved to only read");
                }
                Ok(Assessment { findings: walk.findings, is_read_only: walk.is_read_only })
            }
        }
    }

    /// Adds a finding, unless the same finding exists.
    pub(crate) fn found(&mut self, rule: Rule, argv: &[Text], why: impl Into<String>) {
        let shown = |text: &str| text.replace([UNKNOWN, SOMETHING, NUMBER], "…");
        let command = argv.iter().map(|text| shown(&text.value.replace('…', "\\…"))).collect();
        let finding = Finding { rule, command, why: shown(&why.into()) };
        self.is_read_only = false;
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Walks over a script that a command of the line runs. A script that cannot be parsed needs approval.
    pub(crate) fn script(&mut self, script: &Text, source: Source, scope: &mut Scope) -> Source {
        if self.depth >= MAX_DEPTH {
            self.failure = Some(Unreadable::TooComplex);
            return Source::default();
        }
        if !script.is_known() {
            self.is_read_only = false;
        }
        self.depth += 1;
        if script.is_downloaded {
            self.found(Rule::DownloadToShell, std::slice::from_ref(script), "runs what it downloads");
        } else if script.is_decoded {
            self.found(
                Rule::HiddenCode,
                std::slice::from_ref(script),
                "runs text that is decoded on the command line",
            );
        }
        // The script may be for another shell than the line.
        let parsed = parse(&script.value, self.dialect).or_else(|_| parse(&script.value, Dialect::Bash));
        let output = match parsed {
            Ok(program) => self.program(&program, source, scope),
            Err(_) => {
                self.found(
                    Rule::Unreadable,
                    std::slice::from_ref(script),
                    "runs a script that cannot be read",
                );
                Source::default()
            }
        };
        self.depth -= 1;
        output
    }

    /// Enters and counts a command that another command runs.
    pub(crate) fn enter(&mut self) {
        self.depth += 1;
        self.commands += 1;
        if self.depth > MAX_DEPTH || self.commands > MAX_COMMANDS {
            self.failure = Some(Unreadable::TooComplex);
        }
    }

    /// Ends the level that [`Self::enter`] began.
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Whether the walk failed, because the line is too complex.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The output of a command substitution.
    pub(crate) fn substitution(&mut self, script: &str, scope: &mut Scope) -> Text {
        // The findings of the script apply to the line. The output is not known exactly, even if the script only reads.
        let output = self.script(&Text::known(script), Source::default(), &mut scope.clone());
        let unknown = Text::known(&SOMETHING.to_string());
        let known = output.text.map(|text| Text { is_approximate: true, ..text });
        let mut value = known.filter(|text| !text.value.is_empty()).unwrap_or(unknown);
        value.is_downloaded |= output.is_download;
        value.is_decoded |= output.is_hidden;
        value.value.truncate(value.value.trim_end_matches('\n').len());
        value
    }

    fn program(&mut self, program: &ast::Program, source: Source, scope: &mut Scope) -> Source {
        let lists = program.complete_commands.iter();
        let nothing = Source { text: Some(Text::default()), ..Source::default() };
        lists.fold(nothing, |output, list| output.then(self.list(list, source.clone(), scope)))
    }

    fn list(&mut self, list: &CompoundList, source: Source, scope: &mut Scope) -> Source {
        let mut output = Source { text: Some(Text::default()), ..Source::default() };
        for item in &list.0 {
            let is_async = matches!(item.1, SeparatorOperator::Async);
            if is_async && self.endless > 0 {
                self.found(
                    Rule::ForkBomb,
                    &[Text::known(&item.0.to_string())],
                    "starts processes without an end",
                );
            }
            self.beside += usize::from(is_async);
            if is_async {
                let mut inner = scope.clone();
                output = output.then(self.chain(&item.0, &source, &mut inner));
                scope.downloads.extend(inner.downloads);
            } else {
                output = output.then(self.chain(&item.0, &source, scope));
            }
            self.beside -= usize::from(is_async);
        }
        output
    }

    /// Walks over pipelines between `&&` and `||`. Each pipeline after the first may run or not.
    fn chain(&mut self, list: &AndOrList, source: &Source, scope: &mut Scope) -> Source {
        let mut output = self.pipeline(&list.first, source, scope);
        let before = scope.clone();
        for and_or in &list.additional {
            let (AndOr::And(pipeline) | AndOr::Or(pipeline)) = and_or;
            if matches!(and_or, AndOr::Or(_)) {
                scope.blur(&before);
            }
            output = output.then(self.pipeline(pipeline, source, scope));
        }
        scope.blur(&before);
        output
    }

    fn pipeline(&mut self, pipeline: &Pipeline, source: &Source, scope: &mut Scope) -> Source {
        let mut source = source.clone();
        if let [only] = pipeline.seq.as_slice() {
            return self.command(only, source, scope);
        }
        self.beside += 1;
        let mut last = None;
        for command in &pipeline.seq {
            let mut inner = scope.clone();
            source = self.command(command, source, &mut inner);
            scope.downloads.extend(inner.downloads.iter().cloned());
            last = Some(inner);
        }
        // In zsh, the last command of a pipeline changes the variables of the shell.
        if let Some(last) = last {
            scope.blur_with(last);
        }
        self.beside -= 1;
        source
    }

    fn command(&mut self, command: &Command, source: Source, scope: &mut Scope) -> Source {
        self.commands += 1;
        if self.commands > MAX_COMMANDS || self.depth > MAX_DEPTH {
            self.failure = Some(Unreadable::TooComplex);
        }
        if self.failure.is_some() {
            return Source::default();
        }
        match command {
            Command::Simple(simple) => {
                let simple = self.simple(simple, scope);
                self.run(simple, source, scope)
            }
            Command::Compound(compound, redirects) => {
                let source = self.redirected(redirects.as_ref(), source, scope);
                self.compound(compound, source, scope)
            }
            Command::Function(function) => {
                self.is_read_only = false;
                let name = function.fname.value.clone();
                scope.functions.insert(name.clone(), Rc::new(function.body.clone()));
                self.inside.push(name);
                let mut inner = scope.with_parameters(None);
                self.body(&function.body, Source::default(), &mut inner);
                self.inside.pop();
                Source::default()
            }
            Command::ExtendedTest(test, redirects) => {
                self.redirected(redirects.as_ref(), source, scope);
                self.test(&test.expr, scope);
                Source { text: Some(Text::default()), ..Source::default() }
            }
        }
    }

    /// Walks over the body of a function that is called.
    pub(crate) fn body(&mut self, body: &ast::FunctionBody, source: Source, scope: &mut Scope) -> Source {
        let source = self.redirected(body.1.as_ref(), source, scope);
        self.compound(&body.0, source, scope)
    }

    fn test(&mut self, test: &ExtendedTestExpr, scope: &mut Scope) {
        match test {
            ExtendedTestExpr::And(left, right) | ExtendedTestExpr::Or(left, right) => {
                self.test(left, scope);
                self.test(right, scope);
            }
            ExtendedTestExpr::Not(inner) | ExtendedTestExpr::Parenthesized(inner) => self.test(inner, scope),
            ExtendedTestExpr::UnaryTest(predicate, word) => {
                self.nested(&word.value, scope);
                let names_variable = matches!(predicate, UnaryPredicate::ShellVariableIsSetAndAssigned);
                if names_variable && !variables::is_name(&word.value) {
                    self.not_proved(&word.value, "reads a variable whose name is not known");
                }
            }
            ExtendedTestExpr::BinaryTest(predicate, left, right) => {
                for word in [left, right] {
                    self.nested(&word.value, scope);
                    if is_arithmetic(predicate) && !self.word(&word.value, scope).is_number() {
                        self.arithmetic(&word.value, scope);
                    }
                }
            }
        }
    }

    fn compound(&mut self, compound: &CompoundCommand, source: Source, scope: &mut Scope) -> Source {
        match compound {
            CompoundCommand::BraceGroup(group) => self.list(&group.list, source, scope),
            CompoundCommand::Subshell(subshell) => self.list(&subshell.list, source, &mut scope.clone()),
            CompoundCommand::Arithmetic(arithmetic) => {
                self.arithmetic(&arithmetic.expr.value, scope);
                Source::default()
            }
            CompoundCommand::ArithmeticForClause(clause) => {
                if let Some(part) = &clause.initializer {
                    self.arithmetic(&part.value, scope);
                }
                let is_endless = clause.condition.as_ref().is_none_or(|part| part.value.trim().is_empty());
                self.looped(None, scope, |walk, scope| {
                    for part in [&clause.condition, &clause.updater].into_iter().flatten() {
                        walk.arithmetic(&part.value, scope);
                    }
                    walk.repeat(&clause.body.list, is_endless, source.clone(), scope)
                })
            }
            CompoundCommand::ForClause(clause) => self.for_each(clause, &source, scope),
            CompoundCommand::CaseClause(clause) => {
                self.word(&clause.value.value, scope);
                let mut output = Source::default();
                for case in &clause.cases {
                    for pattern in &case.patterns {
                        self.nested(&pattern.value, scope);
                    }
                    if let Some(list) = &case.cmd {
                        let before = scope.clone();
                        output = output.then(self.list(list, source.clone(), scope));
                        scope.blur(&before);
                    }
                }
                output
            }
            CompoundCommand::IfClause(clause) => {
                self.list(&clause.condition, source.clone(), scope);
                let before = scope.clone();
                let mut output = self.list(&clause.then, source.clone(), scope);
                scope.blur(&before);
                for other in clause.elses.iter().flatten() {
                    if let Some(condition) = &other.condition {
                        self.list(condition, source.clone(), scope);
                    }
                    output = output.then(self.list(&other.body, source.clone(), scope));
                    scope.blur(&before);
                }
                Source { text: None, ..output }
            }
            CompoundCommand::WhileClause(clause) | CompoundCommand::UntilClause(clause) => {
                let is_endless = is_constant(&clause.0);
                self.looped(None, scope, |walk, scope| {
                    walk.list(&clause.0, source.clone(), scope);
                    walk.repeat(&clause.1.list, is_endless, source.clone(), scope)
                })
            }
            CompoundCommand::Coprocess(coprocess) => {
                self.is_read_only = false;
                self.beside += 1;
                let output = self.command(&coprocess.body, source, &mut scope.clone());
                self.beside -= 1;
                output
            }
        }
    }

    fn for_each(&mut self, clause: &ast::ForClauseCommand, source: &Source, scope: &mut Scope) -> Source {
        let words = clause.values.as_deref().unwrap_or_default();
        let mut values: Vec<Text> = words.iter().flat_map(|word| self.words(word, scope)).collect();
        if values.is_empty() || values.len() > MAX_VALUES {
            values.truncate(MAX_VALUES);
            values.push(Text::unknown());
        }
        let before = scope.clone();
        let name = Some(clause.variable_name.as_str());
        let output = self.looped(name, scope, |walk, scope| {
            let mut output = Source::default();
            for value in &values {
                walk.assign(&clause.variable_name, value.clone(), scope);
                output = output.then(walk.list(&clause.body.list, source.clone(), scope));
            }
            output
        });
        // The loop may end before its last value.
        scope.blur(&before);
        Source { text: None, ..output }
    }

    /// Walks over a loop. If the loop changes variables other than `own`, which it sets itself, walks again with all
    /// values that the variables may have.
    fn looped(
        &mut self,
        own: Option<&str>,
        scope: &mut Scope,
        mut body: impl FnMut(&mut Self, &mut Scope) -> Source,
    ) -> Source {
        let mut before = scope.clone();
        let output = body(self, scope);
        if let Some(own) = own {
            before.set(own, scope.variable(own));
        }
        if !scope.blur(&before) {
            return output;
        }
        let output = output.then(body(self, scope));
        scope.blur(&before);
        output
    }

    fn repeat(&mut self, list: &CompoundList, is_endless: bool, source: Source, scope: &mut Scope) -> Source {
        let is_endless = is_endless && !pauses(list);
        self.endless += usize::from(is_endless);
        let output = self.list(list, source, scope);
        self.endless -= usize::from(is_endless);
        Source { text: None, ..output }
    }

    /// The words of a simple command, expanded.
    fn simple(&mut self, command: &SimpleCommand, scope: &mut Scope) -> Simple {
        let mut simple = Simple::default();
        let prefix = command.prefix.iter().flat_map(|prefix| &prefix.0);
        for item in prefix {
            self.item(item, &mut simple, scope);
        }
        if let Some(name) = &command.word_or_name {
            simple.argv.extend(self.words(name, scope));
        }
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, &mut simple, scope);
        }
        simple
    }

    fn item(&mut self, item: &Item, simple: &mut Simple, scope: &mut Scope) {
        match item {
            Item::Word(word) => simple.argv.extend(self.words(word, scope)),
            Item::IoRedirect(redirect) => self.redirect(redirect, simple, scope),
            Item::ProcessSubstitution(_, inner) => {
                let output = self.list(&inner.list, Source::default(), &mut scope.clone());
                simple.argv.push(Text::known("/dev/fd/63"));
                simple.source.get_or_insert(output);
                self.is_read_only = false;
            }
            Item::AssignmentWord(assignment, word) => match (&assignment.name, &assignment.value) {
                // The assignment is an argument, as in `declare NAME=value`.
                _ if !simple.argv.is_empty() => simple.argv.extend(self.words(word, scope)),
                (AssignmentName::VariableName(name), AssignmentValue::Scalar(value)) => {
                    let mut value = self.word(&value.value, scope);
                    if assignment.append {
                        let before = scope.variable(name);
                        value.value.insert_str(0, &before.value);
                        value.is_approximate = true;
                    }
                    simple.assignments.push((name.clone(), value));
                }
                (AssignmentName::VariableName(name), AssignmentValue::Array(values)) => {
                    let values: Vec<String> =
                        values.iter().map(|(_, value)| self.word(&value.value, scope).value).collect();
                    let all = Text { is_approximate: true, ..Text::known(&values.join(" ")) };
                    simple.assignments.push((name.clone(), all));
                }
                (AssignmentName::ArrayElementName(name, index), value) => {
                    self.arithmetic(index, scope);
                    if let AssignmentValue::Scalar(value) = value {
                        self.word(&value.value, scope);
                    }
                    simple.assignments.push((name.clone(), Text::unknown()));
                }
            },
        }
    }

    fn redirected(&mut self, list: Option<&ast::RedirectList>, source: Source, scope: &mut Scope) -> Source {
        let mut simple = Simple::default();
        for redirect in list.iter().flat_map(|list| &list.0) {
            self.redirect(redirect, &mut simple, scope);
        }
        self.check_redirects(&simple.redirects, scope);
        simple.source.unwrap_or(source)
    }

    fn redirect(&mut self, redirect: &IoRedirect, simple: &mut Simple, scope: &mut Scope) {
        let known = |text: Text| Source {
            is_download: text.is_downloaded,
            is_hidden: text.is_decoded,
            text: Some(text),
            ..Source::default()
        };
        match redirect {
            IoRedirect::File(_, kind, target) => match target {
                IoFileRedirectTarget::Filename(word) => {
                    let file = self.word(&word.value, scope);
                    let redirect = Redirect::new(kind, file);
                    if !redirect.writes {
                        simple.source = Some(Source::default());
                    }
                    simple.redirects.push(redirect);
                }
                IoFileRedirectTarget::ProcessSubstitution(_, inner) => {
                    let output = self.list(&inner.list, Source::default(), &mut scope.clone());
                    simple.source = Some(output);
                    self.is_read_only = false;
                }
                IoFileRedirectTarget::Duplicate(word) => {
                    // The target is a descriptor, as in `>&2`, or otherwise a file.
                    let target = self.word(&word.value, scope);
                    let is_descriptor =
                        target.value.trim_end_matches('-').bytes().all(|byte| byte.is_ascii_digit());
                    if !is_descriptor {
                        simple.redirects.push(Redirect::new(kind, target));
                    }
                }
                IoFileRedirectTarget::Fd(_) => {}
            },
            IoRedirect::HereDocument(_, document) => {
                let text = if document.requires_expansion {
                    self.nested(&document.doc.value, scope);
                    self.word(&format!("\"{}\"", document.doc.value.replace('"', "\\\"")), scope)
                } else {
                    Text::known(&document.doc.value)
                };
                simple.source = Some(known(text));
            }
            IoRedirect::HereString(_, word) => {
                let text = self.word(&word.value, scope);
                simple.source = Some(known(text));
            }
            IoRedirect::OutputAndError(word, _) => {
                let file = self.word(&word.value, scope);
                simple.redirects.push(Redirect { writes: true, file });
            }
        }
    }
}

/// Whether a test evaluates its words as arithmetic expressions.
fn is_arithmetic(predicate: &BinaryPredicate) -> bool {
    use BinaryPredicate as B;
    matches!(
        predicate,
        B::ArithmeticEqualTo
            | B::ArithmeticNotEqualTo
            | B::ArithmeticLessThan
            | B::ArithmeticLessThanOrEqualTo
            | B::ArithmeticGreaterThan
            | B::ArithmeticGreaterThanOrEqualTo
    )
}

/// Whether the condition of a loop is constant: always true, or (in an `until` loop) always false.
fn is_constant(list: &CompoundList) -> bool {
    matches!(
        list.to_string().trim(),
        "true" | ":" | "[ 1 ]" | "((1))" | "test 1" | "[[ 1 ]]" | "false" | "((0))"
    )
}

/// Whether a loop pauses in each iteration.
fn pauses(list: &CompoundList) -> bool {
    let text = list.to_string();
    text.split(|at: char| !at.is_ascii_alphanumeric())
        .any(|word| matches!(word, "sleep" | "wait" | "read" | "inotifywait"))
}
