//! Checks one command with its words expanded, and the commands that it runs.

use crate::call::{Call, Redirect, Source};
use crate::code;
use crate::expand::unescape;
use crate::read_only;
use crate::rules::{self, Rule};
use crate::scope::Scope;
use crate::text::Text;
use crate::variables;
use crate::walk::{Simple, Walk};
use crate::wrappers::{self, Inner};

impl Walk {
    /// Checks a simple command. Returns the output of the command, as far as it is known.
    pub(crate) fn run(&mut self, simple: Simple, source: Source, scope: &mut Scope) -> Source {
        self.check_redirects(&simple.redirects, scope);
        let source = simple.source.unwrap_or(source);
        if simple.argv.is_empty() {
            for (name, value) in simple.assignments {
                self.assign(&name, value, scope);
            }
            return Source { text: Some(Text::default()), ..Source::default() };
        }
        let is_harmless = |(name, value): &(String, Text)| variables::is_harmless(name) && value.is_known();
        if !simple.assignments.iter().all(is_harmless) {
            let set = simple
                .assignments
                .iter()
                .map(|(name, value)| Text::known(&format!("{name}={}", value.value)));
            let argv: Vec<Text> = set.chain(simple.argv.iter().cloned()).collect();
            self.found(Rule::Command, &argv, "changes the environment of a command");
        }
        let writes = simple.redirects.iter().any(|redirect| redirect.writes);
        let output = self.call(&simple.argv, &source, scope);
        if output.is_download {
            let files = simple.redirects.iter().filter(|redirect| redirect.writes);
            let places: Vec<_> = files.map(|redirect| scope.place(&redirect.file)).collect();
            scope.downloads.extend(places.iter().map(|place| place.as_str().to_owned()));
        }
        if writes { Source { text: Some(Text::default()), ..Source::default() } } else { output }
    }

    /// Sets a variable of the shell. If the variable changes what programs run or read, the words of later commands no
    /// longer prove what these commands do.
    pub(crate) fn assign(&mut self, name: &str, value: Text, scope: &mut Scope) {
        let why = if variables::is_obeyed(name) {
            Some("changes the environment of the commands after it")
        } else {
            variables::is_code(&value.value).then_some("sets a variable to a text that a shell may run")
        };
        if let Some(why) = why {
            self.found(Rule::Command, &[Text::known(&format!("{name}={}", value.value))], why);
        }
        scope.set(name, value);
    }

    /// Checks the files that redirections open.
    pub(crate) fn check_redirects(&mut self, redirects: &[Redirect], scope: &Scope) {
        for redirect in redirects {
            let argv = [Text::known(if redirect.writes { ">" } else { "<" }), redirect.file.clone()];
            let floor = rules::file(&scope.place(&redirect.file), redirect.writes);
            if let Some((rule, why)) = floor {
                self.found(rule, &argv, why);
            } else if redirect.writes
                && !matches!(redirect.file.value.as_str(), "/dev/null" | "/dev/stderr" | "/dev/stdout")
            {
                self.found(Rule::WriteFile, &argv, "writes a file");
            } else if !redirect.writes
                && (!redirect.file.is_known()
                    || scope.place(&redirect.file).is_device()
                    || scope.place(&redirect.file).is_connection())
            {
                self.found(Rule::Command, &argv, "reads a file that is not known");
            }
        }
    }

    /// Checks a command, and the commands that it runs.
    fn call(&mut self, argv: &[Text], source: &Source, scope: &mut Scope) -> Source {
        let is_inner_proved = std::mem::take(&mut self.is_inner_proved);
        let Some(first) = argv.first() else { return Source::default() };
        if let Some(body) = scope.functions.get(&first.value).cloned() {
            return self.function(&first.value, &body, argv, source, scope);
        }
        let program = first.program();
        // A function is defined only after its body has been checked.
        let is_itself = first.value == "$0" || self.inside.contains(&first.value);
        if is_itself && self.beside > 0 {
            self.found(Rule::ForkBomb, argv, "starts itself again and again");
            return Source::default();
        }
        self.builtin(&program, argv, source, scope);
        let snapshot = scope.clone();
        let call = Call { argv, program: &program, source, scope: &snapshot };
        let before = self.findings.len();
        for (rule, why) in rules::check(&call) {
            self.found(rule, argv, why);
        }
        scope.downloads.extend(rules::downloaded(&call));
        let wrapped = wrappers::unwrap(&call);
        let is_wrapper = !wrapped.inner.is_empty();
        if let Some((rule, why)) = wrapped.finding {
            self.found(rule, argv, why);
        }
        // The command and its inner commands are judged separately: an approval of the command does not approve its
        // inner commands, and the reverse.
        let is_judged =
            self.findings.len() > before || is_wrapper && wrapped.is_transparent || is_inner_proved;
        let mut includes_inner = false;
        if !is_judged {
            match read_only::prove(&call) {
                Ok(()) => includes_inner = matches!(program.as_str(), "find" | "xargs"),
                Err(why) => self.found(Rule::Command, argv, why),
            }
        }
        let mut output = output_of(&call);
        for inner in wrapped.inner {
            match inner {
                Inner::Command(words) => {
                    // A builtin that these run changes the shell itself, as `builtin cd /etc` does.
                    if matches!(program.as_str(), "builtin" | "command") {
                        output = self.nested_call(&words, source, scope);
                        continue;
                    }
                    let mut inside = scope.clone();
                    inside.descends |= program == "find" || is_fed(&program, source);
                    if let Some(directory) = wrappers::directory(&call) {
                        inside.change_directory(&[directory]);
                    }
                    self.is_inner_proved = includes_inner;
                    output = self.nested_call(&words, source, &mut inside);
                }
                Inner::Script(script, parameters) => {
                    let mut inner_scope = scope.with_parameters(Some(parameters));
                    let here = matches!(program.as_str(), "eval" | "trap");
                    output =
                        self.script(&script, source.clone(), if here { scope } else { &mut inner_scope });
                }
                Inner::Code(text) => self.code(&text, argv, scope),
            }
        }
        output
    }

    /// Checks a command that another command runs.
    fn nested_call(&mut self, argv: &[Text], source: &Source, scope: &mut Scope) -> Source {
        self.enter();
        let output = if self.has_failed() { Source::default() } else { self.call(argv, source, scope) };
        self.leave();
        output
    }

    fn function(
        &mut self,
        name: &str,
        body: &brush_parser::ast::FunctionBody,
        argv: &[Text],
        source: &Source,
        scope: &mut Scope,
    ) -> Source {
        self.is_read_only = false;
        if self.inside.iter().any(|inside| inside == name) {
            if self.beside > 0 {
                self.found(Rule::ForkBomb, argv, "starts itself again and again");
            }
            return Source::default();
        }
        self.inside.push(name.to_owned());
        let mut inner = scope.with_parameters(Some(argv[1..].to_vec()));
        let output = self.body(body, source.clone(), &mut inner);
        self.inside.pop();
        scope.directory = inner.directory;
        output
    }

    /// Applies the changes that shell builtins make.
    fn builtin(&mut self, program: &str, argv: &[Text], source: &Source, scope: &mut Scope) {
        match program {
            "cd" | "pushd" => scope.change_directory(&argv[1..]),
            "export" | "declare" | "local" | "typeset" | "readonly" => {
                for argument in &argv[1..] {
                    if let Some((name, value)) = argument.value.split_once('=') {
                        self.assign(name, Text { value: value.to_owned(), ..argument.clone() }, scope);
                    }
                }
            }
            "alias" => {
                for argument in &argv[1..] {
                    if let Some((_, value)) = argument.value.split_once('=') {
                        self.script(
                            &Text { value: value.to_owned(), ..argument.clone() },
                            Source::default(),
                            scope,
                        );
                    }
                }
            }
            "set" => {
                let end = argv.iter().position(|word| word.value == "--");
                let values = match end {
                    Some(end) => &argv[end + 1..],
                    None => {
                        let options =
                            argv[1..].iter().take_while(|word| word.value.starts_with(['-', '+'])).count();
                        &argv[1 + options..]
                    }
                };
                scope.parameters = Some(values.to_vec());
            }
            "read" => {
                for argument in argv[1..].iter().filter(|argument| !argument.value.starts_with('-')) {
                    let value = source.text.as_ref().or(source.places.first());
                    let value = value.map(|text| Text { is_approximate: true, ..text.clone() });
                    scope.descends |= source.text.is_none() && !source.places.is_empty();
                    self.assign(&argument.value, value.unwrap_or_else(Text::unknown), scope);
                }
            }
            "printf" if argv.get(1).is_some_and(|flag| flag.value == "-v") => {
                if let Some(name) = argv.get(2) {
                    let words: Vec<&str> = argv[3..].iter().map(|word| word.value.as_str()).collect();
                    let value = Text { is_approximate: true, ..Text::known(&printed(&words)) };
                    self.assign(&name.value, value, scope);
                }
            }
            "mapfile" | "readarray" | "getopts" | "unset" => {
                for argument in argv[1..].iter().filter(|argument| !argument.value.starts_with('-')) {
                    self.assign(&argument.value, Text::unknown(), scope);
                }
            }
            _ => {}
        }
    }

    /// Checks code of another language for operations that the floor denies.
    fn code(&mut self, text: &Text, argv: &[Text], scope: &mut Scope) {
        if code::is_fork_bomb(&text.value) {
            self.found(Rule::ForkBomb, argv, "starts processes without an end");
        }
        for use_of in code::uses(&text.value) {
            match use_of {
                code::Use::Run(script) => {
                    self.script(&Text::known(&script), Source::default(), &mut scope.clone());
                }
                code::Use::Execute(words) => {
                    let words: Vec<Text> = words.iter().map(|word| Text::known(word)).collect();
                    self.nested_call(&words, &Source::default(), &mut scope.clone());
                }
                code::Use::Delete(path) if scope.place(&Text::known(&path)).is_protected() => {
                    self.found(Rule::DeleteRoot, argv, format!("deletes {path}"));
                }
                code::Use::Open(path, writes) => {
                    if let Some((rule, why)) = rules::file(&scope.place(&Text::known(&path)), writes) {
                        self.found(rule, argv, why);
                    }
                }
                code::Use::Delete(_) => {}
            }
        }
    }
}

/// Whether a program such as `xargs` runs its command with paths that another command lists.
fn is_fed(program: &str, source: &Source) -> bool {
    matches!(program, "xargs" | "parallel") && source.text.is_none() && !source.places.is_empty()
}

/// The output of a command, as far as it is known, and what is known about its origin.
fn output_of(call: &Call<'_>) -> Source {
    let source = call.source;
    let operands = || call.operands().map(|text| text.value.as_str()).collect::<Vec<_>>();
    // Shells differ in what `\` means to `echo`, and only `%s` of `printf` is filled in.
    let is_escaped = |word: &Text| {
        let plain = word.value.replace("\\n", "").replace("%s", "");
        plain.contains(['\\', '%'])
    };
    let is_approximate = call.argv.iter().any(|text| !text.is_known() || is_escaped(text));
    let say = |value: String| Some(Text { value, is_approximate, ..Text::default() });
    let text = match call.program {
        "echo" => {
            let words = call
                .arguments()
                .iter()
                .skip_while(|word| matches!(word.value.as_str(), "-n" | "-e" | "-E" | "-ne"));
            let line = words.map(|word| word.value.as_str()).collect::<Vec<_>>().join(" ");
            say(if call.has(&['e'], &[]) { unescape(&line) } else { line })
        }
        "printf" => say(printed(&operands())),
        "pwd" => say(call.scope.directory.clone()),
        "which" | "type" | "command" => operands().last().and_then(|last| say((*last).to_owned())),
        "cat" | "tee" | "head" | "tail" | "sort" | "uniq"
            if operands().is_empty() || call.program == "tee" =>
        {
            // An option may leave out a part of the input, as that of `head -c 5` does.
            let is_whole = call.arguments().is_empty() || call.program == "tee";
            source.text.clone().map(|text| Text { is_approximate: text.is_approximate || !is_whole, ..text })
        }
        "rev" => source.text.as_ref().and_then(|text| say(text.value.chars().rev().collect())),
        "base64" if call.has(&['d', 'D'], &["decode"]) => source.text.as_ref().and_then(decoded),
        _ => None,
    };
    let decodes = match call.program {
        "base64" | "base32" | "basenc" => call.has(&['d', 'D'], &["decode"]),
        "xxd" => call.has(&['r'], &["revert"]),
        "openssl" | "uudecode" | "gpg" | "tr" | "rev" => true,
        _ => false,
    };
    let places = match call.program {
        "find" => wrappers::find_directories(call),
        "ls" | "fd" => call.operands().cloned().collect(),
        _ => source.places.clone(),
    };
    Source {
        text,
        is_download: source.is_download || rules::is_downloader(call),
        is_hidden: source.is_hidden || decodes,
        places,
        lists_files: read_only::lists_files(call),
    }
}

/// The output of `printf`: its format, with each `%s` or `%b` replaced by the next argument.
fn printed(operands: &[&str]) -> String {
    let Some((format, arguments)) = operands.split_first() else { return String::new() };
    let mut line = unescape(format);
    let mut rest = arguments.iter();
    while let Some(at) = line.find("%s").or_else(|| line.find("%b")) {
        line.replace_range(at..at + 2, rest.next().copied().unwrap_or_default());
    }
    line.replace("%%", "%")
}

fn decoded(text: &Text) -> Option<Text> {
    let packed: String = text.value.split_whitespace().collect();
    let bytes = data_encoding::BASE64.decode(packed.as_bytes()).ok()?;
    Some(Text { is_approximate: true, ..Text::known(&String::from_utf8(bytes).ok()?) })
}
