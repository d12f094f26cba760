//! Tests processes that outlive the client that started them.

use std::time::{Duration, Instant};

use bottle_channel::Channel;
use bottle_protocol::session::guest::{
    Attach, ClientMessage, Exit, FailureKind, GuestEvent, GuestRequest, Process, SCROLLBACK, STDIN, Size,
};
use bottle_protocol::session::process::{
    EndProcess, OutputRead, PROCESSES_DEFAULT, PROCESSES_MAX, ProcessInfo, ProcessName, ProcessState,
    ReadFrom, ReadOutput, ResizeTerminal, SignalProcess, StartProcess, WriteInput,
};

use crate::bottle::{Bottle, SIZE, SOON, Seen, all, ask, provision_with, shell};

/// Starts a process, and returns its handle.
async fn start(channel: &Channel, process: Process, name: Option<&str>) -> ProcessName {
    let name = name.map(|name| name.parse().unwrap());
    let process = Process { stdin: true, ..process };
    match ask(channel, &GuestRequest::StartProcess(StartProcess { process, name })).await {
        GuestEvent::ProcessStarted { handle, pid } if pid > 0 => handle,
        other => panic!("{other:?}"),
    }
}

fn named(name: &str) -> ProcessName {
    name.parse().unwrap()
}

fn refused(answer: GuestEvent) -> (FailureKind, String) {
    match answer {
        GuestEvent::Failed(failure) => (failure.kind, failure.message),
        other => panic!("{other:?}"),
    }
}

/// Reads at most `max` bytes from the position `from` on.
async fn read(
    channel: &Channel,
    process: &ProcessName,
    from: ReadFrom,
    max: u32,
    wait_ms: u64,
) -> (String, OutputRead) {
    let request = ReadOutput { process: process.clone(), from, max, wait_ms, follow: false };
    let seen = all(channel.open(&GuestRequest::ReadOutput(request)).await.unwrap()).await;
    match &seen.events[..] {
        [GuestEvent::Read(read)] => (seen.text(), read.clone()),
        other => panic!("{other:?}"),
    }
}

/// Reads the output from the beginning until it contains `word`.
async fn until(channel: &Channel, process: &ProcessName, word: &str) -> String {
    let end = Instant::now() + SOON;
    let (mut text, mut next) = (String::new(), 0);
    while !text.contains(word) {
        let (part, read) = read(channel, process, ReadFrom::Position(next), 1 << 20, 1000).await;
        (text, next) = (text + &part, read.next);
        assert!(
            Instant::now() < end && (read.state == ProcessState::Running || text.contains(word)),
            "no {word:?} in {text:?}"
        );
    }
    text
}

async fn write(channel: &Channel, process: &ProcessName, text: &str, close: bool) -> GuestEvent {
    let request = WriteInput { process: process.clone(), close };
    let mut stream = channel.open(&GuestRequest::WriteInput(request)).await.unwrap();
    stream.data(STDIN, text.as_bytes()).await.unwrap();
    stream.end().await.unwrap();
    tokio::time::timeout(SOON, stream.receive()).await.unwrap().unwrap()
}

async fn signal(channel: &Channel, process: &ProcessName, signal: u8) {
    let request = SignalProcess { process: process.clone(), signal };
    assert_eq!(ask(channel, &GuestRequest::SignalProcess(request)).await, GuestEvent::Done);
}

async fn end(channel: &Channel, process: &ProcessName, grace_ms: u64) -> GuestEvent {
    ask(channel, &GuestRequest::EndProcess(EndProcess { process: process.clone(), grace_ms })).await
}

/// Waits for the end of a process.
async fn wait(channel: &Channel, process: &ProcessName) -> Exit {
    let request = GuestRequest::WaitForProcesses { processes: vec![process.clone()] };
    match ask(channel, &request).await {
        GuestEvent::ProcessEnded { process: ended, exit } if ended == *process => exit,
        other => panic!("{other:?}"),
    }
}

async fn list(channel: &Channel) -> Vec<ProcessInfo> {
    match ask(channel, &GuestRequest::ListProcesses).await {
        GuestEvent::Processes { processes } => processes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_output_is_read_by_position_and_outlives_hosts() {
    let (bottle, channel) = Bottle::ready().await;
    let process = start(&channel, shell("echo one; echo two; read x; echo three; exit 4"), None).await;
    until(&channel, &process, "two").await;
    // After a new host connects, no output is lost or repeated.
    let channel = bottle.connect().await;
    let (text, first) = read(&channel, &process, ReadFrom::Position(0), 5, 0).await;
    assert_eq!((text.as_str(), first.next, first.end, first.lost), ("one\nt", 5, 8, 0));
    let (text, second) = read(&channel, &process, ReadFrom::Position(first.next), 100, 0).await;
    assert_eq!((text.as_str(), second.next, second.state), ("wo\n", 8, ProcessState::Running));
    let none = read(&channel, &process, ReadFrom::Position(8), 100, 0).await;
    assert_eq!((none.0.as_str(), none.1.next), ("", 8));
    let last = read(&channel, &process, ReadFrom::LastLines(1), 100, 0).await;
    assert_eq!((last.0.as_str(), last.1.from), ("two\n", 4));
    let nothing = read(&channel, &process, ReadFrom::LastLines(0), 100, 0).await;
    assert_eq!(nothing.0, "", "no lines are no output");
    let beyond = read(&channel, &process, ReadFrom::Position(u64::MAX), 100, 0).await;
    assert_eq!((beyond.0.as_str(), beyond.1.next, beyond.1.lost), ("", 8, 0));
    // A read that waits returns when the process writes output.
    let waiting = read(&channel, &process, ReadFrom::Position(8), 100, 60_000);
    let (waited, written) = tokio::join!(waiting, write(&channel, &process, "x\n", false));
    assert_eq!((waited.0.as_str(), written), ("three\n", GuestEvent::Done));
    assert_eq!(wait(&channel, &process).await, Exit::Code(4));
    let (text, after) = read(&channel, &process, ReadFrom::Position(0), 100, 60_000).await;
    assert_eq!((text.as_str(), after.state), ("one\ntwo\nthree\n", ProcessState::Exited(Exit::Code(4))));
    let (kind, why) = refused(write(&channel, &process, "late", false).await);
    assert_eq!((kind, why.as_str()), (FailureKind::BadState, "p1 has ended"));
}

/// Reads the output in parts of at most `max` bytes, up to the last complete character. Every part must consist of
/// complete characters.
async fn read_parts(channel: &Channel, process: &ProcessName, max: u32) -> (String, OutputRead) {
    let (mut text, mut next) = (String::new(), 0);
    loop {
        let (part, read) = read(channel, process, ReadFrom::Position(next), max, 0).await;
        assert!(!part.contains('\u{fffd}') && part.len() <= max.max(4) as usize, "{part:?} of {max} bytes");
        (text, next) = (text + &part, read.next);
        if read.next >= read.end {
            return (text, read);
        }
        assert!(!part.is_empty(), "a part before the end has a character");
    }
}

#[tokio::test]
async fn a_part_ends_at_the_end_of_a_character() {
    let (_bottle, channel) = Bottle::ready().await;
    let script = r"printf 'aé€😀é\303'; read x; printf '\251'; read x; printf 'b\377\342\202'";
    let process = start(&channel, shell(script), None).await;
    until(&channel, &process, "😀é").await;
    for max in 1..=14 {
        let (text, last) = read_parts(&channel, &process, max).await;
        assert_eq!((text.as_str(), last.next, last.state), ("aé€😀é", 12, ProcessState::Running));
    }
    assert_eq!(read(&channel, &process, ReadFrom::Position(0), 0, 0).await.1.next, 0);
    assert_eq!(read(&channel, &process, ReadFrom::LastLines(0), 9, 0).await.1.from, 12);
    // The beginning of a character is no output yet, so a read waits for the rest.
    let waiting = read(&channel, &process, ReadFrom::Position(12), 100, 60_000);
    let (waited, _) = tokio::join!(waiting, write(&channel, &process, "x\n", false));
    assert_eq!((waited.0.as_str(), waited.1.next), ("é", 14));
    write(&channel, &process, "x\n", false).await;
    wait(&channel, &process).await;
    // After the end, the incomplete character is a part of the output.
    let (text, read) = read(&channel, &process, ReadFrom::Position(14), 100, 0).await;
    assert_eq!((text.as_str(), read.next, read.end), ("b\u{fffd}\u{fffd}", 18, 18));
}

#[tokio::test]
async fn output_of_one_stream_does_not_cut_a_character_of_the_other() {
    let (_bottle, channel) = Bottle::ready().await;
    let script = r"printf '\303'; sleep 0.2; printf x >&2; sleep 0.2; printf '\251\n'";
    let process = start(&channel, shell(script), None).await;
    wait(&channel, &process).await;
    let (text, read) = read(&channel, &process, ReadFrom::Position(1), 100, 0).await;
    assert_eq!((text.as_str(), read.next), ("é\n", 4));
}

#[tokio::test]
async fn python_writes_its_output_at_once_unless_the_caller_decides() {
    let (_bottle, channel) = Bottle::ready().await;
    let shows = || shell("echo ${PYTHONUNBUFFERED-unset}.");
    let set =
        |value: &str| Process { env: [("PYTHONUNBUFFERED".to_owned(), value.to_owned())].into(), ..shows() };
    for (process, expected) in [
        (shows(), "1.\n"),
        (set(""), ".\n"),
        (set("0"), "0.\n"),
        (Process { terminal: Some(SIZE), ..shows() }, "unset.\r\n"),
    ] {
        let process = start(&channel, process, None).await;
        wait(&channel, &process).await;
        assert_eq!(read(&channel, &process, ReadFrom::Position(0), 100, 0).await.0, expected);
    }
    let exec = all(channel.open(&GuestRequest::Exec(shows())).await.unwrap()).await;
    assert_eq!(exec.text(), "unset.\n");
}

#[tokio::test]
async fn the_ends_of_several_processes_are_reported_in_their_order() {
    let (_bottle, channel) = Bottle::ready().await;
    let waits = |names: &[&str]| GuestRequest::WaitForProcesses {
        processes: names.iter().map(|name| named(name)).collect(),
    };
    let next = async |stream: &mut bottle_channel::Stream| match tokio::time::timeout(SOON, stream.receive())
        .await
        .unwrap()
        .unwrap()
    {
        GuestEvent::ProcessEnded { process, exit } => (process.to_string(), exit),
        other => panic!("{other:?}"),
    };
    start(&channel, shell("read x; exit 1"), Some("one")).await;
    start(&channel, shell("read x; exit 2"), Some("two")).await;
    start(&channel, shell("exec sleep 1000"), None).await;
    let mut waiting = channel.open(&waits(&["one", "p2", "p3"])).await.unwrap();
    write(&channel, &named("two"), "\n", false).await;
    assert_eq!(next(&mut waiting).await, ("p2".to_owned(), Exit::Code(2)));
    write(&channel, &named("one"), "\n", false).await;
    assert_eq!(next(&mut waiting).await, ("one".to_owned(), Exit::Code(1)));
    // Processes that ended before the request are reported in the order of their ends too.
    let mut late = channel.open(&waits(&["p3", "p1", "two"])).await.unwrap();
    assert_eq!(next(&mut late).await.0, "two");
    assert_eq!(next(&mut late).await.0, "p1");
    end(&channel, &named("p3"), 1000).await;
    for stream in [&mut waiting, &mut late] {
        assert_eq!(next(stream).await, ("p3".to_owned(), Exit::Signal(15)));
    }
    let (_, why) = refused(ask(&channel, &waits(&["p1", "p9"])).await);
    assert!(why.starts_with("the bottle has no process p9: "), "{why}");
    let (_, why) = refused(ask(&channel, &waits(&["p1"; PROCESSES_MAX + 1])).await);
    assert_eq!(why, "one request waits for at most 1024 processes");
}

#[tokio::test]
async fn a_secret_of_the_bottle_is_replaced_in_what_is_read() {
    let (_bottle, channel) = Bottle::ready().await;
    let script = "printf 'a %s b\n' $WORD; printf 'c hunter2-hun'; read x; echo ter2 d; read x";
    let process = start(&channel, shell(script), None).await;
    let all = until(&channel, &process, "c [REDACTED]").await;
    assert_eq!(all, "a [REDACTED] b\nc [REDACTED]");
    // Positions count the bytes that the process wrote, not the redacted bytes.
    let (part, positions) = read(&channel, &process, ReadFrom::Position(5), 4, 0).await;
    assert_eq!((part.as_str(), positions.from, positions.next), ("", 5, 9));
    let (_, last) = read(&channel, &process, ReadFrom::LastLines(0), 1, 0).await;
    write(&channel, &process, "\n", false).await;
    let (rest, _) = read(&channel, &process, ReadFrom::Position(last.end), 100, 5000).await;
    assert_eq!(rest, " d\n", "the rest of the value belongs to it");
    end(&channel, &process, 100).await;
}

#[tokio::test]
async fn old_output_is_lost_and_counted() {
    let (_bottle, channel) = Bottle::ready().await;
    let process = start(&channel, shell("head -c 3000000 /dev/zero; echo end"), None).await;
    assert_eq!(wait(&channel, &process).await, Exit::Code(0));
    let (text, read) = read(&channel, &process, ReadFrom::Position(0), u32::MAX, 0).await;
    assert_eq!((read.end, read.next, read.lost + text.len() as u64), (3_000_004, 3_000_004, 3_000_004));
    assert!(text.len() <= SCROLLBACK && text.ends_with("\0end\n"), "{}", text.len());
    assert_eq!(read.from, read.lost);
}

#[tokio::test]
async fn a_shell_lives_between_clients_and_signals_reach_its_foreground() {
    let (_bottle, channel) = Bottle::ready().await;
    let request =
        Process { argv: vec!["sh".to_owned(), "-i".to_owned()], terminal: Some(SIZE), ..Process::default() };
    let shell = start(&channel, request, Some("main")).await;
    let main = named("main");
    assert_eq!(write(&channel, &main, "cd /; x=kept; echo ready-$((1+1))\n", false).await, GuestEvent::Done);
    until(&channel, &main, "ready-2").await;
    // SIGINT ends the program in the foreground, as Ctrl-C does, and not the shell. The shell moves the program to the
    // foreground before the program runs.
    write(&channel, &main, "sh -c 'echo runs-$((2+1)); exec sleep 1000'\n", false).await;
    until(&channel, &main, "runs-3").await;
    signal(&channel, &main, 2).await;
    write(&channel, &main, "echo $x-$PWD-$((2+2))\n", false).await;
    until(&channel, &main, "kept-/-4").await;
    // A client with another terminal size attaches and detaches.
    let attach =
        Attach { read_only: false, process: Some(main.clone()), size: Some(Size { columns: 100, rows: 30 }) };
    let mut stream = channel.open(&GuestRequest::Attach(attach)).await.unwrap();
    let mut seen = Seen::default();
    stream.data(STDIN, b"stty size\r").await.unwrap();
    seen.until(&mut stream, "30 100").await;
    stream.message(&ClientMessage::Resize(Size { columns: 70, rows: 20 })).await.unwrap();
    stream.data(STDIN, b"stty size\r").await.unwrap();
    seen.until(&mut stream, "20 70").await;
    stream.end().await.unwrap();
    assert!(seen.rest(&mut stream).await.exit().is_none());
    write(&channel, &main, "exit 3\n", false).await;
    assert_eq!(wait(&channel, &shell).await, Exit::Code(3));
    let missing = Attach { read_only: true, process: Some(named("other")), size: None };
    let (_, why) = refused(ask(&channel, &GuestRequest::Attach(missing)).await);
    assert_eq!(why, "the bottle has no process other: it has p1 (main)");
}

#[tokio::test]
async fn an_end_reaches_the_whole_session_and_only_it() {
    let (_bottle, channel) = Bottle::ready().await;
    let other = start(&channel, shell("exec sleep 1000"), None).await;
    let stubborn =
        "trap '' TERM; (trap '' TERM; sleep 1000) & set -m; sleep 1000 & echo up; while :; do sleep 1; done";
    let process = start(&channel, shell(stubborn), None).await;
    until(&channel, &process, "up").await;
    let begun = Instant::now();
    assert_eq!(end(&channel, &process, 300).await, GuestEvent::Exited(Exit::Signal(9)));
    assert!(begun.elapsed() >= Duration::from_millis(300), "it had its time");
    let processes = list(&channel).await;
    let of = |handle: &ProcessName| processes.iter().find(|p| p.handle.as_ref() == Some(handle)).unwrap();
    assert_eq!((of(&process).processes, of(&process).state), (0, ProcessState::Exited(Exit::Signal(9))));
    assert_eq!((of(&other).processes, of(&other).state), (1, ProcessState::Running));
    // A second request to end an exited process returns the same result.
    assert_eq!(end(&channel, &process, 300).await, GuestEvent::Exited(Exit::Signal(9)));
    // SIGTERM also ends a process that SIGSTOP has stopped.
    signal(&channel, &other, 19).await;
    assert_eq!(end(&channel, &other, 10_000).await, GuestEvent::Exited(Exit::Signal(15)));
}

#[tokio::test]
async fn a_list_has_states_names_and_usage() {
    let (_bottle, channel) = Bottle::ready().await;
    let agent = channel.open(&GuestRequest::StartAgent(shell("sleep 1000"))).await.unwrap();
    let busy = start(&channel, shell("while :; do :; done"), Some("busy")).await;
    let input = start(&channel, shell("cat; exit 7"), None).await;
    assert_eq!(write(&channel, &input, "words", true).await, GuestEvent::Done, "the end of the input");
    assert_eq!(wait(&channel, &input).await, Exit::Code(7));
    let wait = Instant::now() + SOON;
    let processes = loop {
        let processes = list(&channel).await;
        if processes[1].cpu_ms >= 100 {
            break processes;
        }
        assert!(Instant::now() < wait, "{processes:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let [agent_info, busy_info, input_info] = &processes[..] else { panic!("{processes:?}") };
    assert_eq!((&agent_info.handle, agent_info.state), (&None, ProcessState::Running));
    assert_eq!((&busy_info.handle, &busy_info.name), (&Some(busy.clone()), &Some(named("busy"))));
    assert_eq!(busy_info.argv, ["sh", "-c", "while :; do :; done"]);
    assert!(
        busy_info.memory_bytes > 0 && busy_info.processes == 1 && busy_info.ended_at.is_none(),
        "{busy_info:?}"
    );
    assert!(
        input_info.ended_at >= Some(input_info.started_at) && input_info.processes == 0,
        "{input_info:?}"
    );
    // A name can be used again after its process has ended. A handle is never used again.
    let request = |name: &str| {
        GuestRequest::StartProcess(StartProcess { process: shell("true"), name: Some(named(name)) })
    };
    let (_, why) = refused(ask(&channel, &request("busy")).await);
    assert_eq!(why, "a process named busy runs already: p1");
    let (_, why) = refused(ask(&channel, &request("p9")).await);
    assert_eq!(why, "p9 cannot be a name, because handles look like this");
    end(&channel, &busy, 1000).await;
    assert_eq!(start(&channel, shell("true"), Some("busy")).await, named("p3"));
    let missing = StartProcess { process: crate::bottle::process(&["no-such-program"]), name: None };
    assert_eq!(refused(ask(&channel, &GuestRequest::StartProcess(missing)).await).0, FailureKind::NotFound);
    assert_eq!(start(&channel, shell("true"), None).await, named("p5"), "a failed start uses a handle too");
    drop(agent);
}

#[tokio::test]
async fn the_number_of_processes_is_bounded() {
    let (_bottle, channel) = Bottle::ready().await;
    let first = start(&channel, shell("true"), None).await;
    wait(&channel, &first).await;
    for _ in 1..PROCESSES_DEFAULT {
        start(&channel, shell("exec sleep 1000"), None).await;
    }
    // The new process replaces the ended process in the registry.
    let last = start(&channel, shell("exec sleep 1000"), None).await;
    let (_, why) = refused(end(&channel, &first, 0).await);
    assert!(why.starts_with("the bottle has no process p1: it has p2, "), "{why}");
    let request = GuestRequest::StartProcess(StartProcess { process: shell("true"), name: None });
    assert_eq!(
        refused(ask(&channel, &request).await).1,
        "64 processes run already, and `processes.keep` allows no more"
    );
    assert_eq!(end(&channel, &last, 5000).await, GuestEvent::Exited(Exit::Signal(15)));
    start(&channel, shell("true"), None).await;
}

#[tokio::test]
async fn the_host_sets_the_number_of_processes() {
    let bottle = Bottle::start();
    let channel = bottle.connect().await;
    provision_with(&channel, Some(2)).await;
    for _ in 0..2 {
        start(&channel, shell("exec sleep 1000"), None).await;
    }
    let request = GuestRequest::StartProcess(StartProcess { process: shell("true"), name: None });
    let (_, why) = refused(ask(&channel, &request).await);
    assert_eq!(why, "2 processes run already, and `processes.keep` allows no more");
}

#[tokio::test]
async fn many_processes_leave_no_open_files() {
    let (bottle, channel) = Bottle::ready().await;
    let descriptors = format!("/proc/{}/fd", bottle.process.id());
    let open = || std::fs::read_dir(&descriptors).map(Iterator::count);
    let Ok(before) = open() else {
        eprintln!("skipped: the open files of the guest cannot be listed");
        return;
    };
    let in_terminal = Process { terminal: Some(SIZE), ..shell("read x; echo $x") };
    for _ in 0..50 {
        // One process ends by itself, one runs in a terminal, a request ends one, one does not start, and one is a
        // command.
        for process in [shell("cat; echo x"), in_terminal.clone()] {
            let process = start(&channel, process, None).await;
            write(&channel, &process, "x\n", true).await;
            wait(&channel, &process).await;
            read(&channel, &process, ReadFrom::Position(0), 100, 0).await;
        }
        let ended = start(&channel, shell("sleep 1000"), None).await;
        end(&channel, &ended, 1000).await;
        let missing = StartProcess { process: crate::bottle::process(&["no-such-program"]), name: None };
        refused(ask(&channel, &GuestRequest::StartProcess(missing)).await);
        all(channel.open(&GuestRequest::Exec(shell("echo x"))).await.unwrap()).await;
    }
    let wait = Instant::now() + SOON;
    while open().unwrap() > before {
        assert!(Instant::now() < wait, "{} open files, and {before} before", open().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_writer_that_gives_up_disturbs_no_other() {
    let (_bottle, channel) = Bottle::ready().await;
    let process = start(&channel, shell("exec sleep 1000"), None).await;
    let request = WriteInput { process: process.clone(), close: false };
    let stream = channel.open(&GuestRequest::WriteInput(request)).await.unwrap();
    let block = vec![b'x'; 1 << 20];
    // The process does not read, so the writer waits.
    assert!(tokio::time::timeout(Duration::from_millis(300), stream.data(STDIN, &block)).await.is_err());
    drop(stream);
    assert_eq!(end(&channel, &process, 5000).await, GuestEvent::Exited(Exit::Signal(15)));
}

#[tokio::test]
async fn a_client_follows_all_processes_to_their_end() {
    let (_bottle, channel) = Bottle::ready().await;
    let mut starts = channel.open(&GuestRequest::WatchProcesses).await.unwrap();
    let mut known = async || match tokio::time::timeout(SOON, starts.receive()).await.unwrap().unwrap() {
        GuestEvent::Processes { processes } => {
            processes.into_iter().map(|info| info.handle.unwrap()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(known().await, []);
    let script = "echo one; read x; echo two; exec sleep 900";
    let process = start(&channel, shell(script), None).await;
    assert_eq!(known().await, std::slice::from_ref(&process));
    let request = ReadOutput {
        process: process.clone(),
        from: ReadFrom::Position(0),
        max: 1 << 20,
        wait_ms: 0,
        follow: true,
    };
    let mut followed = channel.open(&GuestRequest::ReadOutput(request)).await.unwrap();
    let mut seen = Seen::default();
    seen.until(&mut followed, "one\n").await;
    write(&channel, &process, "\n", false).await;
    // The client receives the last output and the exit of the process, although the process is killed when the bottle
    // stops.
    let stopped = channel.open(&crate::bottle::stop(0)).await.unwrap();
    let seen = seen.rest(&mut followed).await;
    assert_eq!(seen.reset, None);
    let Some(GuestEvent::Read(last)) = seen.events.last() else { panic!("{seen:?}") };
    assert_eq!((last.next, last.state), (last.end, ProcessState::Exited(Exit::Signal(9))));
    assert!(["one\n", "one\ntwo\n"].contains(&seen.text().as_str()), "{seen:?}");
    drop(stopped);
}

#[tokio::test]
async fn a_terminal_has_the_size_that_a_client_sets() {
    let (_bottle, channel) = Bottle::ready().await;
    let resize = |process: &ProcessName, columns, rows| {
        let request = ResizeTerminal { process: process.clone(), size: Size { columns, rows } };
        GuestRequest::ResizeTerminal(request)
    };
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done";
    let terminal = Some(Size { columns: 100, rows: 40 });
    let process = start(&channel, Process { terminal, ..shell(script) }, None).await;
    until(&channel, &process, "40 100").await;
    assert_eq!(ask(&channel, &resize(&process, 61, 17)).await, GuestEvent::Done);
    until(&channel, &process, "17 61").await;
    let piped = start(&channel, shell("read x"), None).await;
    let (_, why) = refused(ask(&channel, &resize(&piped, 61, 17)).await);
    assert_eq!(why, "p2 has no terminal");
    end(&channel, &process, 0).await;
    let (_, why) = refused(ask(&channel, &resize(&process, 1, 1)).await);
    assert_eq!(why, "p1 has ended");
}

#[tokio::test]
async fn the_processor_time_of_an_ended_process_is_kept() {
    let (_bottle, channel) = Bottle::ready().await;
    // The process computes itself, in a child that it reaps, and in an orphan that the guest reaps.
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let script = format!("{work}; sh -c '{work}'; (sh -c '{work}; echo orphan' &); read x");
    let process = start(&channel, shell(&script), None).await;
    until(&channel, &process, "orphan").await;
    write(&channel, &process, "x\n", false).await;
    assert_eq!(wait(&channel, &process).await, Exit::Code(0));
    let listed = || async { list(&channel).await.pop().expect("the process") };
    let ended = listed().await;
    assert!(ended.cpu_ms > 0 && ended.processes == 0, "{ended:?}");
    assert_eq!(listed().await.cpu_ms, ended.cpu_ms);
    let (_, read) = read(&channel, &process, ReadFrom::Position(0), 100, 0).await;
    assert_eq!(read.cpu_ms, Some(ended.cpu_ms));
    let idle = start(&channel, shell("true"), None).await;
    wait(&channel, &idle).await;
    assert!(listed().await.cpu_ms < ended.cpu_ms, "{:?}", listed().await);
}
