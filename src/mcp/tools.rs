//! The tools: their names, their descriptions for the model, their arguments, and the calls that carry them out.

use std::time::Duration;

use bottle_lib::file_lines::LineRange;
use bottle_lib::processes::TERMINAL_SIZE;
use bottle_protocol::session::files::{self, ENTRIES_MAX, FilePath, FileRequest, Scope};
use bottle_protocol::session::guest::{Process, STDERR, STDOUT};
use bottle_protocol::session::process::ReadFrom;
use bottle_protocol::session::service::Restart;

use super::arguments::{Arguments, Field, Kind, POSITION_MAX, optional, required};
use super::call::{Call, Checked};
use super::requests::{BottleRequest, Fork, Pull, Request, RunInEnvironment, Start, StartService};

/// A tool.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) effect: Effect,
    pub(super) about: &'static str,
    pub(super) fields: &'static [Field],
    /// Builds the call. The second argument is the name of the bottle, which is empty for a tool without a bottle.
    pub(super) call: fn(&Arguments, &str) -> Call,
}

/// The effect of a tool. Some clients use this information to decide whether to ask their user before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The tool changes nothing.
    Reads,
    /// The tool adds something.
    Adds,
    /// The tool may change or remove something that exists.
    Changes,
}

/// The object that a tool works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// No bottle, or several bottles.
    None,
    /// The bottle with the name in `bottle`.
    Bottle,
    /// The bottle of the task in `task`.
    Task,
}

impl Tool {
    pub(super) fn target(&self) -> Target {
        let has = |wanted: Field| self.fields.iter().any(|field| field.name == wanted.name);
        match (has(BOTTLE), has(TASK)) {
            (true, _) => Target::Bottle,
            (false, true) => Target::Task,
            (false, false) => Target::None,
        }
    }
}

/// The name of the tool that lists bottles.
pub(super) const LIST: &str = "bottle_list";

/// The name of the tool that makes an environment if there is none.
pub(super) const RUN: &str = "env_run";

const BOTTLE: Field = required("bottle", Kind::Name, "As bottle_list shows it.");
const TASK: Field =
    required("task", Kind::Name, "The id of the task: the same id always means the same bottle.");
const PROCESS: Field = required("process", Kind::Name, "Its handle or name, as process_list shows it.");
const PATH: Field = required("path", Kind::Text, "The path, from the workspace on.");
const DIRECTORY: Field =
    optional("path", Kind::Text, "The directory, from the workspace on. By default the workspace.");
const COPIED_DIRECTORY: Field =
    optional("directory", Kind::Text, "Only this one of several copied directories.");
const WORKDIR: Field = optional("workdir", Kind::Text, "The directory. By default the workspace.");
const ENV: Field = optional("env", Kind::Variables, "Environment variables to set.");
const AFTER: Field =
    optional("after", Kind::Text, "Begin behind this entry: the `next` of the previous part.");
const EXCLUDE: Field = optional("exclude", Kind::Texts, "Leave out what matches a pattern of .gitignore.");
const COMMAND: Field = required(
    "command",
    Kind::Command,
    "A shell script, or a list with the words of a command, which no shell reads.",
);
const TIME_LIMIT: Field =
    optional("timeout", Kind::Number(1, 600), "The time limit in seconds. By default 45.");
const STDIN: Field = optional("stdin", Kind::Content, "The input of the command.");
const MERGE: Field =
    optional("merge", Kind::Flag, "Write standard error into `stdout`, in the order of the command.");
const FROM: Field =
    optional("from", Kind::Number(0, POSITION_MAX), "Begin here: `next` of the previous part.");
const WAIT: Field = optional("wait", Kind::Number(1, 45), "Wait at most so many seconds for output.");
const STREAM: Field = optional("stream", Kind::OneOf(&["stdout", "stderr"]), "Only this stream.");
const PROMPT: Field = optional("prompt", Kind::Text, "The task of its agent, which then has no terminal.");
const LABEL: Field = optional("label", Kind::Name, "The name of the new bottle.");

/// The default time limit of a command, in seconds. The limit is below 60 seconds, because clients wait 60 seconds for
/// a call.
const TIMEOUT: u64 = 45;

/// The default size of one part of an output, in bytes.
const OUTPUT: u32 = 50_000;

/// The default maximum number of entries or lines.
const LIMIT: u32 = 1000;

/// The default size of one part of a file, in bytes.
const PART: u64 = 256 << 10;

/// The time limit of tools that start bottles or save files, in seconds.
const LONG: u64 = 1800;

/// The tool that runs a command.
const TERMINAL: Tool = Tool {
    name: "terminal",
    effect: Effect::Changes,
    about: "Runs a command in a bottle and returns its exit code and output. It is ended after `timeout` \
            seconds, with `timed_out` in the result: start long commands with process_start.",
    fields: &[
        BOTTLE,
        COMMAND,
        TIME_LIMIT,
        WORKDIR,
        ENV,
        STDIN,
        MERGE,
        optional("user", Kind::Text, "The user of the bottle. By default the agent's user."),
    ],
    call: |given, _| {
        let limit = time_limit(given);
        Call::bottle(BottleRequest::Exec(command(given), limit))
            .input(given.text("stdin"))
            .checked(Checked::Command)
            .seconds(limit.as_secs().saturating_add(15))
    },
};

/// The variant of [`TERMINAL`] for an agent in another bottle. That agent cannot choose the user that runs the command.
pub(super) const AGENT_TERMINAL: Tool =
    Tool { fields: &[BOTTLE, COMMAND, TIME_LIMIT, WORKDIR, ENV, STDIN, MERGE], ..TERMINAL };

/// All tools.
pub(super) const ALL: &[Tool] = &[
    TERMINAL,
    Tool {
        name: "process_start",
        effect: Effect::Changes,
        about: "Starts a process that goes on without this call, and returns its handle. It ends with the bottle.",
        fields: &[
            BOTTLE,
            COMMAND,
            optional("name", Kind::Name, "A name beside the handle."),
            optional("terminal", Kind::Flag, "Run it in a terminal, as a shell needs."),
            optional("size", Kind::Size, "With `terminal`: its columns and rows. By default 120x30."),
            WORKDIR,
            ENV,
        ],
        call: |given, _| {
            let terminal = given.flag("terminal").then(|| given.size("size").unwrap_or(TERMINAL_SIZE));
            let process = Process { stdin: true, terminal, ..program(given) };
            let name = given.text("name").map(str::to_owned);
            Call::bottle(BottleRequest::StartProcess(process, name)).checked(Checked::Command)
        },
    },
    Tool {
        name: "process_list",
        effect: Effect::Reads,
        about: "Lists the agent and the processes that were started in a bottle, also those that ended.",
        fields: &[BOTTLE, optional("children", Kind::Flag, "Also those of bottles that its agent started.")],
        call: |given, _| Call::bottle(BottleRequest::Processes { children: given.flag("children") }),
    },
    Tool {
        name: "process_log",
        effect: Effect::Reads,
        about: "Reads the output of a process, also after its bottle ended. The bottle keeps the last MiB. `next` is \
                where the next part begins.",
        fields: &[
            BOTTLE,
            PROCESS,
            FROM,
            optional("tail", Kind::Number(0, 10_000), "Begin so many lines before the end."),
            WAIT,
            STREAM,
            optional("max_output", Kind::Number(1, 200_000), "The most bytes. By default 50000."),
        ],
        call: |given, _| output_of(given.required("process"), given),
    },
    Tool {
        name: "process_wait",
        effect: Effect::Reads,
        about: "Waits until a process ends, and returns how. Of several, waits for the first one that ends. After \
                `timeout` seconds, the state is `running`, and the process goes on.",
        fields: &[
            BOTTLE,
            required(
                "process",
                Kind::Names,
                "A handle or name, as process_list shows it, or a list of them.",
            ),
            optional("all", Kind::Flag, "Wait for all of them, and return a list."),
            optional("timeout", Kind::Number(1, 3600), "The longest wait in seconds. By default 45."),
            optional("until", Kind::Text, "Wait for a line of output that matches this regular expression."),
            optional(
                "from",
                Kind::Number(0, POSITION_MAX),
                "With `until`: begin at this position of the output.",
            ),
        ],
        call: |given, _| {
            let timeout = given.number("timeout").unwrap_or(TIMEOUT);
            let wait = BottleRequest::Wait {
                processes: given.names("process"),
                all: given.flag("all"),
                limit: Duration::from_secs(timeout),
                until: given.text("until").map(str::to_owned),
                from: given.number("from").unwrap_or(0),
            };
            Call::bottle(wait).seconds(timeout.saturating_add(15))
        },
    },
    Tool {
        name: "process_write",
        effect: Effect::Changes,
        about: "Writes to the input of a process, as typed text.",
        fields: &[
            BOTTLE,
            PROCESS,
            optional("text", Kind::Content, "The text."),
            optional("newline", Kind::Flag, "Add a line break to the text. By default true."),
            optional("eof", Kind::Flag, "Then close the input; in a terminal, type Ctrl-D."),
            optional("size", Kind::Size, "Resize its terminal first."),
        ],
        call: |given, _| {
            let text = given.required("text");
            let adds_break = given.text("text").is_some() && given.flag_or("newline", true);
            let input = if adds_break { format!("{text}\n") } else { text.to_owned() };
            let process = given.required("process").to_owned();
            let write = BottleRequest::Write { process, close: given.flag("eof"), size: given.size("size") };
            Call::bottle(write).input(Some(&input)).checked(Checked::Input)
        },
    },
    Tool {
        name: "process_signal",
        effect: Effect::Changes,
        about: "Sends a signal to a process. In a terminal, INT, QUIT and TSTP go to the program in the foreground. \
                To end a process for sure, call process_kill.",
        fields: &[BOTTLE, PROCESS, required("signal", Kind::Name, "The signal: INT, SIGINT or 2.")],
        call: |given, _| {
            let word = |name| given.required(name).to_owned();
            Call::bottle(BottleRequest::Signal { process: word("process"), signal: word("signal") })
        },
    },
    Tool {
        name: "process_kill",
        effect: Effect::Changes,
        about: "Ends a process with all programs that it started in its session: SIGTERM, and SIGKILL later.",
        fields: &[
            BOTTLE,
            PROCESS,
            optional("time", Kind::Number(0, 60), "The seconds between SIGTERM and SIGKILL. By default 3."),
        ],
        call: |given, _| {
            let process = given.required("process").to_owned();
            let time = given.number("time").unwrap_or(3);
            Call::bottle(BottleRequest::End { process, grace: Duration::from_secs(time) }).seconds(time + 60)
        },
    },
    Tool {
        name: "service_list",
        effect: Effect::Reads,
        about: "Lists the services of a bottle: programs that run beside the agent and are checked for readiness.",
        fields: &[BOTTLE],
        call: |_, _| Call::bottle(BottleRequest::Services),
    },
    Tool {
        name: "service_start",
        effect: Effect::Changes,
        about: "Starts a service and waits until it is ready. Without `command`, starts a service again that ended. \
                At most one of `http`, `tcp`, `file` and `check` says when it is ready.",
        fields: &[
            BOTTLE,
            required("name", Kind::Name, "The name of the service."),
            Field { required: false, ..COMMAND },
            optional(
                "http",
                Kind::Text,
                "Ready when a GET request to this http:// URL has a status from 200 to 399.",
            ),
            optional("tcp", Kind::Text, "Ready when this HOST:PORT accepts a connection."),
            optional("file", Kind::Text, "Ready when this file exists."),
            optional("check", Kind::Text, "Ready when this shell script exits with code 0."),
            optional(
                "start_period",
                Kind::Number(1, 600),
                "The seconds in which it must become ready. By default 30.",
            ),
            optional(
                "restart",
                Kind::OneOf(&["no", "on-failure", "always"]),
                "When to start it again. By default no.",
            ),
            WORKDIR,
            ENV,
        ],
        call: |given, _| {
            let name = given.required("name").to_owned();
            let seconds = given.number("start_period").unwrap_or(30) + 60;
            if given.command("command").is_none() {
                return Call::bottle(BottleRequest::StartServiceAgain(name)).seconds(seconds);
            }
            let text = |name| given.text(name).map(str::to_owned);
            let start = StartService {
                name,
                program: program(given),
                http: text("http"),
                tcp: text("tcp"),
                file: text("file"),
                check: text("check"),
                start_period: given.number("start_period").map(Duration::from_secs),
                restart: match given.text("restart") {
                    Some("on-failure") => Restart::OnFailure,
                    Some("always") => Restart::Always,
                    _ => Restart::No,
                },
            };
            Call::bottle(BottleRequest::StartService(Box::new(start)))
                .checked(Checked::Command)
                .seconds(seconds)
        },
    },
    Tool {
        name: "service_stop",
        effect: Effect::Changes,
        about: "Stops a service.",
        fields: &[BOTTLE, required("name", Kind::Name, "The name of the service.")],
        call: |given, _| Call::bottle(BottleRequest::StopService(given.required("name").to_owned())),
    },
    Tool {
        name: "service_logs",
        effect: Effect::Reads,
        about: "Reads the output of the last run of a service, as process_log does.",
        fields: &[
            BOTTLE,
            required("name", Kind::Name, "The name of the service."),
            FROM,
            optional("tail", Kind::Number(0, 10_000), "Begin so many lines before the end."),
            WAIT,
            STREAM,
        ],
        call: |given, _| output_of(given.required("name"), given),
    },
    Tool {
        name: "file_list",
        effect: Effect::Reads,
        about: "Lists the files of a workspace.",
        fields: &[
            BOTTLE,
            DIRECTORY,
            optional("recursive", Kind::Flag, "List directories below it too."),
            AFTER,
            optional("limit", Kind::Number(1, 10_000), "The most entries. By default 1000."),
        ],
        call: |given, _| {
            let path = directory(given);
            let (recursive, after, limit) = (given.flag("recursive"), after(given), limit(given));
            Call::files(FileRequest::List(files::List { path, recursive, after, limit }))
        },
    },
    Tool {
        name: "file_stat",
        effect: Effect::Reads,
        about: "Describes one file or directory of a workspace.",
        fields: &[BOTTLE, PATH],
        call: |given, _| Call::files(FileRequest::Stat { path: path(given) }),
    },
    Tool {
        name: "file_read",
        effect: Effect::Reads,
        about: "Reads a file of a workspace, or a part of it. `next` is where the next part begins. With `line` \
                or `lines`, reads lines, up to `next_line`.",
        fields: &[
            BOTTLE,
            PATH,
            optional("line", Kind::Number(1, POSITION_MAX), "Begin at this line. The first is 1."),
            optional("lines", Kind::Number(1, 10_000), "Read at most so many lines. By default 1000."),
            optional("offset", Kind::Number(0, POSITION_MAX), "Begin at this byte, without `line`."),
            optional("max", Kind::Number(1, 1 << 20), "Read at most so many bytes. By default 262144."),
        ],
        call: |given, _| match (given.number("line"), given.number("lines")) {
            (None, None) => {
                let (offset, max) =
                    (given.number("offset").unwrap_or(0), given.number("max").unwrap_or(PART));
                Call::files(FileRequest::Read(files::Read { path: path(given), offset, max, redact: true }))
            }
            (first, count) => {
                let range = LineRange { first: first.unwrap_or(1), count: count.unwrap_or(LIMIT.into()) };
                Call::bottle(BottleRequest::FileLines(path(given), range))
            }
        },
    },
    Tool {
        name: "file_write",
        effect: Effect::Changes,
        about: "Writes a whole file of a workspace, at once. Makes missing directories.",
        fields: &[
            BOTTLE,
            PATH,
            required("content", Kind::Content, "The content."),
            optional("new", Kind::Flag, "Fail if the file exists."),
        ],
        call: |given, _| {
            Call::files(FileRequest::Write(files::Write { path: path(given), new: given.flag("new") }))
                .changes([given.required("path")])
                .input(given.text("content"))
        },
    },
    Tool {
        name: "file_replace",
        effect: Effect::Changes,
        about: "Replaces a text in a file of a workspace. The text must occur once, unless `all` is set.",
        fields: &[
            BOTTLE,
            PATH,
            required("search", Kind::Text, "The text to replace."),
            required("replace", Kind::Text, "Its replacement."),
            optional("all", Kind::Flag, "Replace each occurrence."),
        ],
        call: |given, _| {
            let replace = files::Replace {
                path: path(given),
                search: given.required("search").to_owned(),
                replacement: given.required("replace").to_owned(),
                all: given.flag("all"),
                check: false,
            };
            Call::files(FileRequest::Replace(replace)).changes([given.required("path")])
        },
    },
    Tool {
        name: "file_patch",
        effect: Effect::Changes,
        about: "Applies a unified diff, as `git diff` writes it, to files of a workspace: all of it or \
                nothing.",
        fields: &[
            BOTTLE,
            required("patch", Kind::Content, "The diff."),
            optional("check", Kind::Flag, "Check only, and change no file."),
        ],
        call: |given, _| {
            let check = given.flag("check");
            let call = Call::files(FileRequest::Patch { check }).input(given.text("patch"));
            if check { call } else { call.changes(patched(given.required("patch"))) }
        },
    },
    Tool {
        name: "file_delete",
        effect: Effect::Changes,
        about: "Deletes a file of a workspace, or with `recursive` a directory.",
        fields: &[BOTTLE, PATH, optional("recursive", Kind::Flag, "Delete a directory with its contents.")],
        call: |given, _| {
            let recursive = given.flag("recursive");
            Call::files(FileRequest::Remove { path: path(given), recursive })
                .changes([given.required("path")])
        },
    },
    Tool {
        name: "file_reset",
        effect: Effect::Changes,
        about: "Puts files of a workspace back to the state with which bottle_diff compares: restores what \
                was changed or deleted, and removes what was created. Their changes are lost.",
        fields: &[
            BOTTLE,
            optional(
                "paths",
                Kind::Texts,
                "Reset only these files and directories. By default the workspace.",
            ),
            optional("dry_run", Kind::Flag, "List the files only, and change none."),
        ],
        call: |given, _| {
            let (paths, dry_run) = (given.texts("paths"), given.flag("dry_run"));
            let call = Call::bottle(BottleRequest::Reset { paths: paths.clone(), dry_run }).seconds(LONG);
            if dry_run { call } else { call.changes(paths) }
        },
    },
    Tool {
        name: "file_find",
        effect: Effect::Reads,
        about: "Finds files of a workspace by a pattern such as `**/*.rs`.",
        fields: &[
            BOTTLE,
            required("pattern", Kind::Text, "The pattern."),
            DIRECTORY,
            EXCLUDE,
            AFTER,
            optional("limit", Kind::Number(1, 10_000), "The most entries. By default 1000."),
        ],
        call: |given, _| {
            let (scope, pattern) = (scope(given), given.required("pattern").to_owned());
            let (after, limit) = (after(given), limit(given));
            Call::files(FileRequest::Glob(files::Glob { scope, pattern, after, limit }))
        },
    },
    Tool {
        name: "file_search",
        effect: Effect::Reads,
        about: "Searches the files of a workspace for lines that match a regular expression.",
        fields: &[
            BOTTLE,
            required("pattern", Kind::Text, "The regular expression."),
            optional("path", Kind::Text, "The directory or file. By default the workspace."),
            optional("fixed_strings", Kind::Flag, "Search for the pattern as plain text."),
            optional("ignore_case", Kind::Flag, "Match letters in either case."),
            optional("include", Kind::Texts, "Search only files that match a pattern of .gitignore."),
            EXCLUDE,
            optional(
                "limit",
                Kind::Number(1, ENTRIES_MAX as u64),
                "Stop after so many lines. By default 1000.",
            ),
        ],
        call: |given, _| {
            let grep = files::Grep {
                scope: scope(given),
                pattern: given.required("pattern").to_owned(),
                literal: given.flag("fixed_strings"),
                ignore_case: given.flag("ignore_case"),
                include: given.texts("include"),
                limit: limit(given),
                redact: true,
            };
            Call::files(FileRequest::Grep(grep))
        },
    },
    Tool {
        name: RUN,
        effect: Effect::Changes,
        about: "Runs a command in the bottle of a task, as terminal does. The first call for a task id starts the bottle, \
                which takes some seconds, and a later one resumes it if it was idle. The user's settings choose its \
                agent, image and limits.",
        fields: &[TASK, COMMAND, TIME_LIMIT, WORKDIR, ENV, STDIN, MERGE],
        call: |given, _| {
            let run = RunInEnvironment {
                task: given.required("task").to_owned(),
                program: command(given),
                limit: time_limit(given),
                is_own: false,
            };
            Call::request(Request::RunInEnvironment(Box::new(run)))
                .input(given.text("stdin"))
                .checked(Checked::Command)
                .seconds(LONG)
        },
    },
    Tool {
        name: "env_list",
        effect: Effect::Reads,
        about: "Lists your tasks that have a bottle, with its name for the other tools and its state.",
        fields: &[],
        call: |_, _| Call::request(Request::Environments),
    },
    Tool {
        name: "env_remove",
        effect: Effect::Changes,
        about: "Stops the bottle of a task and deletes its files. Fails while a command of env_run runs in it.",
        fields: &[TASK],
        call: |given, _| {
            Call::request(Request::RemoveEnvironment(given.required("task").to_owned())).seconds(LONG)
        },
    },
    Tool {
        name: LIST,
        effect: Effect::Reads,
        about: "Lists the bottles that you may use, with their state.",
        fields: &[],
        call: |_, _| Call::request(Request::Bottles),
    },
    Tool {
        name: "agent_list",
        effect: Effect::Reads,
        about: "Lists the agents that bottle_start can start.",
        fields: &[],
        call: |_, _| Call::request(Request::Agents),
    },
    Tool {
        name: "bottle_start",
        effect: Effect::Adds,
        about: "Starts a bottle in the background and returns its name, `slug`: an isolated machine with an agent, \
                which reaches only the hosts of its manifests.",
        fields: &[
            required("agent", Kind::Name, "The agent, as agent_list shows it."),
            LABEL,
            optional("bottles", Kind::Texts, "Bottle manifests to use instead of the agent's default."),
            optional("copy_cwd", Kind::Flag, "Copy the working directory of this server into the workspace."),
            PROMPT,
            optional("owned", Kind::Flag, "End it with this connection; over HTTP, with the server."),
        ],
        call: |given, _| launch(given),
    },
    Tool {
        name: "bottle_stop",
        effect: Effect::Changes,
        about: "Stops a bottle. Its files are kept if it has work that was neither pulled nor committed.",
        fields: &[
            BOTTLE,
            optional("time", Kind::Number(0, 600), "Kill the agent after so many seconds. By default 10."),
        ],
        call: |given, _| {
            let time = given.number("time").unwrap_or(10);
            Call::bottle(BottleRequest::Stop(Duration::from_secs(time))).seconds(time + 120)
        },
    },
    Tool {
        name: "bottle_discard",
        effect: Effect::Changes,
        about: "Deletes the kept files of a bottle that ended. Their work is lost.",
        fields: &[BOTTLE],
        call: |_, _| Call::bottle(BottleRequest::Discard).seconds(LONG),
    },
    Tool {
        name: "bottle_commit",
        effect: Effect::Adds,
        about: "Saves a snapshot of a bottle, from which bottle_resume and bottle_fork start.",
        fields: &[BOTTLE, optional("name", Kind::Name, "The name of the snapshot.")],
        call: |given, _| {
            let name = given.text("name").map(str::to_owned);
            Call::bottle(BottleRequest::Commit(name)).seconds(LONG)
        },
    },
    Tool {
        name: "bottle_resume",
        effect: Effect::Changes,
        about: "Starts a bottle again that ended, from its kept files or its newest snapshot.",
        fields: &[BOTTLE, PROMPT],
        call: |given, _| Call::bottle(BottleRequest::Resume(prompt(given))).seconds(LONG),
    },
    Tool {
        name: "bottle_fork",
        effect: Effect::Adds,
        about: "Makes new bottles from the files of another one, which goes on.",
        fields: &[
            BOTTLE,
            optional("snapshot", Kind::Name, "Fork this snapshot instead of the current files."),
            optional("count", Kind::Number(1, 16), "The number of new bottles. By default 1."),
            LABEL,
            PROMPT,
        ],
        call: |given, _| {
            let fork = Fork {
                snapshot: given.text("snapshot").map(str::to_owned),
                count: given.number("count").and_then(|count| u16::try_from(count).ok()).unwrap_or(1),
                label: given.text("label").map(str::to_owned),
                prompt: prompt(given),
            };
            Call::bottle(BottleRequest::Fork(fork)).seconds(LONG)
        },
    },
    Tool {
        name: "bottle_diff",
        effect: Effect::Reads,
        about: "Shows what changed in a bottle's workspace since its start, as a patch.",
        fields: &[BOTTLE, COPIED_DIRECTORY],
        call: |given, _| Call::bottle(BottleRequest::Diff(given.text("directory").map(str::to_owned))),
    },
    Tool {
        name: "bottle_pull",
        effect: Effect::Changes,
        about: "Fetches the commits of a bottle into the git repository of this server's working directory, as a \
                branch of its own.",
        fields: &[
            BOTTLE,
            optional("branch", Kind::Name, "Fetch this branch instead of the bottle's HEAD."),
            optional(
                "uncommitted",
                Kind::Flag,
                "Also take uncommitted files, as one commit. Not with `branch`.",
            ),
            COPIED_DIRECTORY,
        ],
        call: |given, _| {
            let text = |name| given.text(name).map(str::to_owned);
            let uncommitted = given.flag("uncommitted");
            let pull = Pull { branch: text("branch"), uncommitted, directory: text("directory") };
            Call::bottle(BottleRequest::Pull(pull)).seconds(LONG)
        },
    },
    Tool {
        name: "bottle_logs",
        effect: Effect::Reads,
        about: "Reads the last lines of what a bottle's agent wrote.",
        fields: &[
            BOTTLE,
            optional("tail", Kind::Number(1, 2000), "The number of lines. By default 200."),
            optional("egress", Kind::Flag, "Show the decisions of the egress proxy instead."),
        ],
        call: |given, _| {
            let lines = given.number("tail").unwrap_or(200);
            Call::bottle(match given.flag("egress") {
                true => BottleRequest::AccessLog(lines),
                false => BottleRequest::Log(lines),
            })
        },
    },
];

/// Returns the paths of the files that a unified diff changes, from the headers of the diff.
fn patched(patch: &str) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for line in patch.lines() {
        let headers = ["--- ", "+++ ", "rename from ", "rename to ", "copy to "];
        let Some(path) = headers.iter().find_map(|header| line.strip_prefix(header)) else { continue };
        let path = path.split('\t').next().unwrap_or_default();
        let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path).to_owned();
        if path != "/dev/null" && !path.is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

fn path(given: &Arguments) -> FilePath {
    FilePath::from(given.required("path"))
}

/// Returns the directory in `path`. Without `path`, returns the workspace.
fn directory(given: &Arguments) -> FilePath {
    FilePath::from(given.text("path").unwrap_or("."))
}

fn after(given: &Arguments) -> Option<FilePath> {
    given.text("after").map(FilePath::from)
}

fn limit(given: &Arguments) -> u32 {
    given.number("limit").and_then(|limit| u32::try_from(limit).ok()).unwrap_or(LIMIT)
}

/// Returns the scope of a search. The scope excludes the `.git` directories.
fn scope(given: &Arguments) -> Scope {
    Scope { path: directory(given), exclude: given.texts("exclude"), git: false }
}

/// Returns the program of a call, with its directory, its user and its variables.
fn program(given: &Arguments) -> Process {
    Process {
        argv: given.command("command").unwrap_or_default(),
        env: given.variables("env").into_iter().collect(),
        cwd: given.text("workdir").map(str::to_owned),
        user: given.text("user").map(str::to_owned),
        ..Process::default()
    }
}

/// Returns the program of a call that waits until the program ends. Secrets in the program's output are replaced.
fn command(given: &Arguments) -> Process {
    Process { merged: given.flag("merge"), redact: true, ..program(given) }
}

/// Returns the time limit of a command that the call waits for.
fn time_limit(given: &Arguments) -> Duration {
    Duration::from_secs(given.number("timeout").unwrap_or(TIMEOUT))
}

/// Builds a call that reads the output of a process. A service is a process with the service's name.
fn output_of(process: &str, given: &Arguments) -> Call {
    let from = match given.number("tail") {
        Some(lines) => ReadFrom::LastLines(lines),
        None => ReadFrom::Position(given.number("from").unwrap_or(0)),
    };
    let max = given.number("max_output").and_then(|max| u32::try_from(max).ok()).unwrap_or(OUTPUT);
    let wait = Duration::from_secs(given.number("wait").unwrap_or(0));
    let only = given.text("stream").map(|stream| if stream == "stderr" { STDERR } else { STDOUT });
    Call::bottle(BottleRequest::Output { process: process.to_owned(), from, max, wait, only })
}

/// Builds a call that starts a bottle in the background.
pub(super) fn launch(given: &Arguments) -> Call {
    let start = Start {
        agent: given.required("agent").to_owned(),
        label: given.text("label").map(str::to_owned),
        bottles: given.texts("bottles"),
        copies_cwd: given.flag("copy_cwd"),
        prompt: prompt(given),
        is_owned: given.flag("owned"),
    };
    Call::request(Request::Start(Box::new(start))).seconds(LONG)
}

fn prompt(given: &Arguments) -> Option<String> {
    given.text("prompt").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::mcp::arguments::schema;

    /// Returns a value for each argument.
    fn filled(tool: &Tool, only_required: bool) -> Value {
        let value = |field: &Field| match field.kind {
            Kind::Name if field.name == "signal" => json!("INT"),
            // A value in the form of a flag must not be parsed as a flag.
            Kind::Text
                if ["path", "search", "replace", "pattern", "user", "workdir", "until"]
                    .contains(&field.name) =>
            {
                json!("--json")
            }
            Kind::Text if field.name == "http" => json!("http://localhost/"),
            Kind::Name | Kind::Text | Kind::Content | Kind::Command => json!("a-1"),
            Kind::OneOf(words) => json!(words[0]),
            Kind::Number(from, _) => json!(from.max(1)),
            Kind::Flag => json!(true),
            Kind::Size => json!("80x24"),
            Kind::Texts => json!(["b", "c"]),
            Kind::Names => json!(["a-1", "p2"]),
            Kind::Variables => json!({"NAME": "--value"}),
        };
        let fields = tool.fields.iter().filter(|field| field.required || !only_required);
        // These arguments exclude each other.
        let excluded = ["tcp", "file", "check", "branch", "dry_run"];
        let fields = fields.filter(|field| !excluded.contains(&field.name));
        Value::Object(fields.map(|field| (field.name.to_owned(), value(field))).collect())
    }

    /// Building a call panics if it needs an argument that the schema does not require.
    #[test]
    fn each_tool_takes_its_required_arguments_alone_and_all_of_them() {
        for tool in ALL {
            for only_required in [true, false] {
                let given = filled(tool, only_required);
                let given = Arguments::check(tool.fields, given.as_object().cloned()).expect(tool.name);
                let call = (tool.call)(&given, "one");
                assert!(!call.limit().is_zero(), "{}", tool.name);
            }
        }
    }

    #[test]
    fn names_are_different_and_every_tool_explains_itself() {
        let names: HashSet<&str> = ALL.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), ALL.len());
        for tool in ALL {
            assert!(tool.about.ends_with('.'), "{}", tool.name);
            assert!(tool.fields.iter().all(|field| field.about.ends_with('.')), "{}", tool.name);
            assert_eq!(schema(tool.fields)["type"], "object");
        }
    }

    /// Every conversation of a model carries all tools. A token of this text is about four bytes.
    #[test]
    fn all_tools_together_are_below_five_thousand_tokens() {
        let all =
            ALL.iter().map(|tool| json!([tool.name, tool.about, schema(tool.fields)]).to_string().len());
        let bytes: usize = all.sum();
        assert!(bytes < 5_000 * 4, "{bytes} bytes");
    }

    #[test]
    fn programs_typed_text_and_changes_of_files_are_checked() {
        let checked: Vec<&str> = ALL
            .iter()
            .filter(|tool| {
                let given = filled(tool, false);
                let given = Arguments::check(tool.fields, given.as_object().cloned()).expect(tool.name);
                (tool.call)(&given, "one").checked != Checked::Nothing
            })
            .map(|tool| tool.name)
            .collect();
        let programs = ["terminal", "process_start", "process_write", "service_start"];
        let changes = ["file_write", "file_replace", "file_patch", "file_delete", "file_reset"];
        assert_eq!(checked, [&programs[..], &changes, &["env_run"]].concat());
    }

    #[test]
    fn a_patch_names_the_files_that_it_changes() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/new y\t2026\n\
                     rename from old\nrename to c/d\n";
        assert_eq!(patched(patch), ["x", "new y", "old", "c/d"]);
        assert_eq!(patched("no patch"), [""; 0]);
    }
}
