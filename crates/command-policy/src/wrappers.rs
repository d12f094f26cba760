//! Commands that run other commands.

use crate::call::Call;
use crate::escapes;
use crate::rules::Rule;
use crate::text::Text;
use crate::variables;

/// A program, a script or code that a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inner {
    /// A program with arguments.
    Command(Vec<Text>),
    /// A shell script, with its parameters.
    Script(Text, Vec<Text>),
    /// Code of another language.
    Code(Text),
}

/// The programs, scripts and code that a command runs, and facts about the command itself.
#[derive(Debug, Default)]
pub(crate) struct Wrapped {
    /// The programs, scripts and code, in the order in which the command runs them.
    pub(crate) inner: Vec<Inner>,
    /// The finding about the command itself.
    pub(crate) finding: Option<(Rule, &'static str)>,
    /// Whether the command does nothing except running its inner commands.
    pub(crate) is_transparent: bool,
}

/// A command that runs the program in its arguments.
struct Wrapper {
    name: &'static str,
    /// The short options that have a value.
    valued: &'static str,
    /// The long options whose value is the next word.
    long: &'static [&'static str],
    /// The number of operands before the program.
    operands: usize,
    is_transparent: bool,
}

const fn plain(name: &'static str, valued: &'static str, operands: usize) -> Wrapper {
    Wrapper { name, valued, long: &[], operands, is_transparent: true }
}

const fn changing(
    name: &'static str,
    valued: &'static str,
    long: &'static [&'static str],
    operands: usize,
) -> Wrapper {
    Wrapper { name, valued, long, operands, is_transparent: false }
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper { name: "env", valued: "uC", long: &["--unset", "--chdir"], operands: 0, is_transparent: true },
    Wrapper {
        name: "timeout",
        valued: "sk",
        long: &["--signal", "--kill-after"],
        operands: 1,
        is_transparent: true,
    },
    Wrapper { name: "nice", valued: "n", long: &["--adjustment"], operands: 0, is_transparent: true },
    plain("command", "", 0),
    plain("builtin", "", 0),
    plain("busybox", "", 0),
    plain("toybox", "", 0),
    plain("stdbuf", "ioe", 0),
    plain("ionice", "cn", 0),
    changing("exec", "a", &[], 0),
    changing("nohup", "", &[], 0),
    changing("setsid", "", &[], 0),
    changing("time", "fo", &["--format", "--output"], 0),
    changing("chrt", "TPD", &[], 1),
    changing("taskset", "", &[], 1),
    changing("strace", "oepEsuPI", &[], 0),
    changing("ltrace", "oepsulan", &[], 0),
    changing("unshare", "SGRw", &["--root", "--wd"], 0),
    changing("nsenter", "tSGrw", &["--target"], 0),
    changing("chroot", "", &[], 1),
    changing("systemd-run", "upEdHMtC", &["--unit", "--property", "--setenv"], 0),
    changing(
        "xargs",
        "IndPLEsa",
        &["--max-args", "--delimiter", "--max-procs", "--replace", "--arg-file"],
        0,
    ),
    changing("parallel", "jaIN", &["--jobs"], 0),
    changing("dbus-run-session", "", &[], 0),
    changing("unbuffer", "", &[], 0),
    changing("caffeinate", "tw", &[], 0),
    changing("sudo", "ugChpCrtTUDR", &["--user", "--group", "--chdir", "--host", "--prompt", "--chroot"], 0),
    changing("doas", "uC", &[], 0),
    changing("pkexec", "", &["--user"], 0),
    changing("run0", "u", &["--user"], 0),
    changing("sg", "", &[], 1),
];

/// Programs that run shell scripts.
pub(crate) const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash", "ksh93", "lksh", "oksh", "yash",
    "csh", "tcsh", "pwsh", "elvish", "nu",
];

/// Programs that run code: their name, the letters of the short options whose value is code, and the long options whose
/// value is code.
const INTERPRETERS: &[(&str, &str, &[&str])] = &[
    ("python", "c", &[]),
    ("pypy", "c", &[]),
    ("perl", "eE", &[]),
    ("ruby", "e", &[]),
    ("nodejs", "ep", &["--eval", "--print"]),
    ("node", "ep", &["--eval", "--print"]),
    ("bun", "e", &["--eval"]),
    ("php", "r", &["--run"]),
    ("lua", "e", &[]),
    ("osascript", "e", &[]),
    ("rscript", "e", &[]),
    ("tclsh", "c", &[]),
];

/// The interpreter that the name of a program identifies. The name may end with a version.
fn interpreter(program: &str) -> Option<&'static (&'static str, &'static str, &'static [&'static str])> {
    INTERPRETERS.iter().find(|(name, ..)| {
        program
            .strip_prefix(name)
            .is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    })
}

/// Whether a program executes its standard input, because no argument names a file to run.
pub(crate) fn runs_its_input(call: &Call<'_>) -> bool {
    let is_shell = SHELLS.contains(&call.program);
    if !is_shell && interpreter(call.program).is_none() {
        return false;
    }
    let letters: &[char] = if is_shell { &['c'] } else { &['c', 'e', 'E', 'p', 'r'] };
    let first = call.operands().next().map(|text| text.value.as_str());
    let reads =
        first.is_none_or(|first| first == "-" || is_input(first)) || is_shell && call.has(&['s'], &[]);
    reads && !call.has(letters, &["eval", "print", "run", "version", "help"]) && !call.has(&['V'], &[])
}

/// Whether a path names the standard input or a process substitution.
pub(crate) fn is_input(path: &str) -> bool {
    path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/")
}

/// Returns what a command runs. The result is empty if the command runs no other command.
pub(crate) fn unwrap(call: &Call<'_>) -> Wrapped {
    let program = call.program;
    if SHELLS.contains(&program) {
        return shell(call);
    }
    if interpreter(program).is_some() {
        return code(call);
    }
    match program {
        "sudo" | "doas" | "pkexec" | "run0" | "su" | "runuser" | "sudoedit" => privileged(call),
        "command" if call.has(&['v', 'V'], &[]) => Wrapped::default(),
        "eval" => one(Inner::Script(Text::joined(call.arguments()), Vec::new()), true),
        "." | "source" if call.operands().next().is_some_and(|file| is_input(&file.value)) => {
            input_script(call)
        }
        "trap" => match call.operands().next() {
            Some(script) if call.operands().count() > 1 => {
                one(Inner::Script(script.clone(), Vec::new()), false)
            }
            _ => Wrapped::default(),
        },
        "find" => Wrapped { inner: find_commands(call), ..Wrapped::default() },
        "ssh" => ssh(call),
        "git" => Wrapped { inner: git_commands(call), ..Wrapped::default() },
        _ if escapes::has(program) => Wrapped { inner: escapes::commands(call), ..Wrapped::default() },
        "awk" | "gawk" | "mawk" | "nawk" => Wrapped {
            inner: after_options(call.arguments(), "Fvfeil", &[], 0)
                .first()
                .map(|program| Inner::Code(program.clone()))
                .into_iter()
                .collect(),
            ..Wrapped::default()
        },
        "at" | "batch" | "crontab" => input_script(call),
        "watch" => one(
            Inner::Script(Text::joined(after_options(call.arguments(), "nqd", &[], 0)), Vec::new()),
            false,
        ),
        "flock" | "script" | "entr" => flock(call),
        "tar" | "rsync" | "make" | "scp" | "sftp" => {
            Wrapped { inner: option_commands(call), ..Wrapped::default() }
        }
        _ => {
            WRAPPERS.iter().find(|wrapper| wrapper.name == program).map_or_else(Wrapped::default, |wrapper| {
                let mut wrapped = command(call, wrapper);
                if program == "xargs" || program == "parallel" {
                    add_input(&mut wrapped, call);
                }
                wrapped
            })
        }
    }
}

fn one(inner: Inner, is_transparent: bool) -> Wrapped {
    Wrapped { inner: vec![inner], finding: None, is_transparent }
}

/// The words after the options and `operands` operands.
fn after_options<'a>(words: &'a [Text], valued: &str, long: &[&str], operands: usize) -> &'a [Text] {
    let mut index = 0;
    while let Some(word) = words.get(index) {
        let value = word.value.as_str();
        if value == "--" {
            index += 1;
            break;
        }
        if !value.starts_with('-') || value == "-" {
            break;
        }
        let takes_next = if value.starts_with("--") {
            long.contains(&value)
        } else {
            // The value of the last option in a group of letters may be the next word.
            value.chars().last().is_some_and(|last| valued.contains(last))
                && !value[1..].chars().rev().skip(1).any(|letter| valued.contains(letter))
        };
        index += 1 + usize::from(takes_next);
    }
    words.get(index + operands..).unwrap_or_default()
}

/// The directory in which a wrapper runs its command.
pub(crate) fn directory(call: &Call<'_>) -> Option<Text> {
    let (short, long) = match call.program {
        "env" => ("-C", "--chdir"),
        "sudo" => ("-D", "--chdir"),
        _ => return None,
    };
    let words = call.arguments();
    let at = words.iter().position(|word| word.value == short || word.value == long);
    at.and_then(|at| words.get(at + 1).cloned()).or_else(|| words.iter().find_map(|word| word.after(long)))
}

fn is_harmless_assignment(word: &Text) -> bool {
    word.is_known() && word.value.split_once('=').is_some_and(|(name, _)| variables::is_harmless(name))
}

fn command(call: &Call<'_>, wrapper: &Wrapper) -> Wrapped {
    let words = call.arguments();
    // The option `-S` of `env` contains a complete command: `env -S 'a line'`.
    if wrapper.name == "env" {
        let split = words.iter().enumerate().find_map(|(index, word)| match word.value.as_str() {
            "-S" | "--split-string" => words.get(index + 1).cloned(),
            value if value.starts_with("-S") => Some(Text { value: value[2..].to_owned(), ..word.clone() }),
            _ => word.after("--split-string"),
        });
        if let Some(split) = split {
            return one(Inner::Script(split, Vec::new()), false);
        }
    }
    let rest = after_options(words, wrapper.valued, wrapper.long, wrapper.operands);
    let is_assignment = |word: &&Text| {
        word.value.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.contains('/'))
            && matches!(wrapper.name, "env" | "sudo" | "doas")
    };
    let assigned = rest.iter().take_while(is_assignment).count();
    if rest.len() == assigned {
        return Wrapped::default();
    }
    let inner = Inner::Command(rest[assigned..].to_vec());
    let is_harmless = rest[..assigned].iter().all(is_harmless_assignment);
    let options = &words[..words.len() - rest.len()];
    let is_transparent = wrapper.is_transparent && is_harmless && are_plain(wrapper.name, options);
    Wrapped { inner: vec![inner], finding: None, is_transparent }
}

/// Whether the words before the command of a wrapper are options that change nothing but time and priority. Others may
/// change the environment or the command itself: GNU programs also accept abbreviations, such as `env --split='CMD'`.
fn are_plain(wrapper: &str, options: &[Text]) -> bool {
    let is_plain = |word: &Text| {
        let value = word.value.as_str();
        let is_setting = |value: &str| value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        let option = match value.split_once('=') {
            Some((option, setting)) if is_setting(setting) => option,
            Some(_) => return false,
            None => value,
        };
        match (wrapper, option) {
            ("command", "-p") => true,
            (
                "timeout",
                "--signal" | "--kill-after" | "--preserve-status" | "--foreground" | "--verbose" | "-v",
            )
            | ("nice", "--adjustment") => true,
            ("timeout", option) if !option.starts_with("--") => {
                is_setting(option.trim_start_matches("-s").trim_start_matches("-k"))
            }
            ("nice", option) if !option.starts_with("--") => {
                is_setting(option.trim_start_matches("-n").trim_start_matches('-'))
            }
            ("ionice", option) => is_setting(option.trim_start_matches("-c").trim_start_matches("-n")),
            ("stdbuf", option) if !option.starts_with("--") => {
                is_setting(option.trim_start_matches(['-', 'i', 'o', 'e']))
            }
            _ => false,
        }
    };
    options.iter().all(|word| word.is_known() && is_plain(word))
}

/// Adds the input of `xargs` to the command that `xargs` runs.
fn add_input(wrapped: &mut Wrapped, call: &Call<'_>) {
    let Some(Inner::Command(words)) = wrapped.inner.first_mut() else { return };
    match &call.source.text {
        Some(text) => words.extend(text.value.split_whitespace().map(Text::known)),
        None => {
            words.extend(call.source.places.iter().cloned());
            words.push(Text::unknown());
        }
    }
}

const NO_PRIVILEGES: &str = "needs privileges, which no process of a bottle can get";

fn privileged(call: &Call<'_>) -> Wrapped {
    let mut wrapped = WRAPPERS
        .iter()
        .find(|wrapper| wrapper.name == call.program)
        .map_or_else(|| script_option(call), |wrapper| command(call, wrapper));
    wrapped.finding = Some((Rule::Sudo, NO_PRIVILEGES));
    wrapped
}

/// The script in the value of `-c`.
fn script_option(call: &Call<'_>) -> Wrapped {
    let words = call.arguments();
    let script = words.iter().position(|word| matches!(word.value.as_str(), "-c" | "--command"));
    match script.and_then(|index| words.get(index + 1)) {
        Some(script) => one(Inner::Script(script.clone(), Vec::new()), false),
        None => Wrapped::default(),
    }
}

fn shell(call: &Call<'_>) -> Wrapped {
    let words = call.arguments();
    let mut index = 0;
    while let Some(word) = words.get(index) {
        let value = word.value.as_str();
        if !value.starts_with(['-', '+']) || matches!(value, "-" | "--") {
            break;
        }
        if !value.starts_with("--") && value.contains('c') {
            // The script is the first word after the options.
            let rest = after_options(&words[index + 1..], "oO", &["--rcfile", "--init-file"], 0);
            return match rest.split_first() {
                Some((script, parameters)) => {
                    let parameters = parameters.get(1..).unwrap_or_default().to_vec();
                    let is_plain =
                        value.trim_start_matches('-').chars().all(|letter| "ceux".contains(letter));
                    one(Inner::Script(script.clone(), parameters), is_plain && index == 0)
                }
                None => Wrapped::default(),
            };
        }
        index += 1 + usize::from(value.ends_with(['o', 'O']) || matches!(value, "--rcfile" | "--init-file"));
    }
    if runs_its_input(call) { input_script(call) } else { Wrapped::default() }
}

/// The script that a command reads from its input and runs, if the script is known.
fn input_script(call: &Call<'_>) -> Wrapped {
    let script = call.source.text.clone().filter(|text| !text.value.is_empty());
    Wrapped {
        inner: script.map(|script| Inner::Script(script, Vec::new())).into_iter().collect(),
        ..Wrapped::default()
    }
}

fn code(call: &Call<'_>) -> Wrapped {
    let Some((_, letters, long)) = interpreter(call.program) else { return Wrapped::default() };
    let words = call.arguments();
    let mut inner = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let value = word.value.as_str();
        let is_long = long.contains(&value);
        let group = value.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
        match group.find(|letter| letters.contains(letter)) {
            _ if is_long => inner.extend(words.get(index + 1).cloned().map(Inner::Code)),
            Some(at) if at + 1 == group.len() => inner.extend(words.get(index + 1).cloned().map(Inner::Code)),
            // Perl's option group `-pe` ends with `e`. Any text after this letter is the code.
            Some(at) => inner.push(Inner::Code(Text { value: group[at + 1..].to_owned(), ..word.clone() })),
            None => inner.extend(long.iter().find_map(|long| word.after(long)).map(Inner::Code)),
        }
    }
    let finding = (!inner.is_empty()).then_some((Rule::RunCode, "runs code on the command line"));
    if inner.is_empty() && runs_its_input(call) {
        let input = call.source.text.clone().filter(|text| !text.value.is_empty());
        inner.extend(input.map(Inner::Code));
    }
    Wrapped { inner, finding, is_transparent: false }
}

fn ssh(call: &Call<'_>) -> Wrapped {
    let rest = after_options(call.arguments(), "BbcDEeFIiJLlmOopQRSWw", &[], 1);
    let finding = Some((Rule::RemoteShell, "runs on another machine"));
    let inner =
        (!rest.is_empty()).then(|| Inner::Script(Text::joined(rest), Vec::new())).into_iter().collect();
    Wrapped { inner, finding, is_transparent: false }
}

fn flock(call: &Call<'_>) -> Wrapped {
    let script = script_option(call);
    if !script.inner.is_empty() {
        return script;
    }
    let rest = after_options(call.arguments(), "wE", &[], usize::from(call.program == "flock"));
    if rest.is_empty() || call.program == "script" {
        return Wrapped::default();
    }
    one(Inner::Command(rest.to_vec()), false)
}

/// The directories in which `find` starts.
pub(crate) fn find_directories(call: &Call<'_>) -> Vec<Text> {
    let start = |word: &&Text| !word.value.starts_with(['-', '(', '!']);
    let options = |word: &&Text| matches!(word.value.as_str(), "-H" | "-L" | "-P");
    call.arguments().iter().skip_while(options).take_while(start).cloned().collect()
}

/// The commands of `-exec` and similar actions of `find`. Each directory in which `find` starts replaces `{}`.
fn find_commands(call: &Call<'_>) -> Vec<Inner> {
    let words = call.arguments();
    let directories = find_directories(call);
    let mut inner = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if !matches!(word.value.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir") {
            continue;
        }
        let command: Vec<&Text> =
            words[index + 1..].iter().take_while(|word| !matches!(word.value.as_str(), ";" | "+")).collect();
        let all = if directories.is_empty() { vec![Text::known(".")] } else { directories.clone() };
        for directory in all {
            let filled = command.iter().map(|word| Text {
                value: word.value.replace("{}", &directory.value),
                is_approximate: true,
                ..(*word).clone()
            });
            inner.push(Inner::Command(filled.collect()));
        }
    }
    inner
}

/// The commands that git runs: aliases, and the commands of `bisect run`, `rebase --exec`, `submodule foreach`.
fn git_commands(call: &Call<'_>) -> Vec<Inner> {
    let words = call.arguments();
    let mut inner = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let value = word.value.as_str();
        let next = words.get(index + 1);
        match value {
            "-c" => {
                if let Some((name, setting)) = next.and_then(|next| next.value.split_once('=')) {
                    let name = name.to_ascii_lowercase();
                    let alias = name.starts_with("alias.").then(|| setting.strip_prefix('!')).flatten();
                    let runs =
                        ["core.pager", "core.sshcommand", "core.editor", "core.fsmonitor", "diff.external"];
                    let setting = alias.or_else(|| runs.contains(&name.as_str()).then_some(setting));
                    inner.extend(setting.map(|setting| Inner::Script(Text::known(setting), Vec::new())));
                }
            }
            "-x" | "--exec" => inner.extend(next.map(|next| Inner::Script(next.clone(), Vec::new()))),
            "run" if index > 0 && words[index - 1].value == "bisect" => {
                inner.push(Inner::Command(words[index + 1..].to_vec()));
            }
            "foreach" if index > 0 && words[index - 1].value == "submodule" => {
                inner.push(Inner::Script(Text::joined(&words[index + 1..]), Vec::new()));
            }
            _ => inner.extend(word.after("--exec").map(|script| Inner::Script(script, Vec::new()))),
        }
    }
    inner
}

/// The commands in options of `tar`, `rsync` and similar programs.
fn option_commands(call: &Call<'_>) -> Vec<Inner> {
    let words = call.arguments();
    let mut inner = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let value = word.value.as_str();
        let behind = |name: &str| word.after(name);
        let script = match value {
            "-e" | "--rsh" if call.program == "rsync" => words.get(index + 1).cloned(),
            "-I" | "--use-compress-program" | "--to-command" | "--checkpoint-action"
                if call.program == "tar" =>
            {
                words.get(index + 1).cloned()
            }
            _ => behind("--to-command")
                .or_else(|| behind("--use-compress-program"))
                .or_else(|| behind("--checkpoint-action"))
                .or_else(|| behind("--rsh")),
        };
        inner.extend(script.map(|script| {
            let value = script.value.strip_prefix("exec=").unwrap_or(&script.value).to_owned();
            Inner::Script(Text { value, ..script }, Vec::new())
        }));
    }
    inner
}
