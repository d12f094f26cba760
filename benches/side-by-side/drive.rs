//! Measures operations in a running bottle. The bottle uses the backend `linux`, except in the last measurement. All
//! requests use one connection to the bottle's keeper, as in a program that sends many requests.
//!
//! - `exec` of `true`, measured alternately with a plain fork and exec. Goal: 2 ms
//! - the time from a key typed in a terminal until the echo of this key. Goal: 1 ms
//! - one GiB of output, measured alternately with a plain pipe. Goal: at least half the speed of the pipe, and at most
//!   8 MiB more memory in the keeper and the guest
//! - a list of the processes of a bottle that has 200 processes. Goal: 5 ms
//! - the time from the kill of the keeper until a new keeper serves the bottle. Goal: 2 s
//! - `bottle exec` on Docker, measured alternately with `docker exec`. Goal: at most 0.3 times the duration of
//!   `docker exec`

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_channel::{Channel, Event, Stream, StreamReceiver};
use bottle_host::Host;
use bottle_instance::record::Status;
use bottle_instance::{State, Store};
use bottle_keeper::client;
use bottle_keeper::protocol::KeeperRequest;
use bottle_protocol::session::guest::{Attach, Exit, GuestEvent, GuestRequest, Process, STDIN, Size};
use bottle_protocol::session::process::{ProcessName, StartProcess};
use bottle_test_support::engine;
use bottle_test_support::measure::{Contender, Sample, interleaved, timed};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

use crate::processes::{mib, of_home};
use crate::scene::Scene;

const BOTTLE: &str = "driven";
const ROUNDS: usize = 200;
const OUTPUT: u64 = 1 << 30;

pub(crate) fn run() -> Result<()> {
    let scene = Scene::new(&["sleep", "36000"])?;
    scene.start_detached(BOTTLE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let channel = runtime.block_on(client::connect(&scene.host()?, &BOTTLE.parse()?))?;
    let driver = Driver { runtime, channel };
    exec(&driver)?;
    echo(&driver)?;
    throughput(&driver, &scene)?;
    list(&driver)?;
    takeover(&scene)?;
    scene.bottle(&["stop", BOTTLE, "--time", "0"])?;
    on_docker()
}

/// A connection to a keeper.
struct Driver {
    runtime: Runtime,
    channel: Channel,
}

impl Driver {
    fn open(&self, request: GuestRequest) -> Result<Stream> {
        Ok(self.runtime.block_on(self.channel.open(&KeeperRequest::Guest(request)))?)
    }

    fn ask(&self, request: GuestRequest) -> Result<GuestEvent> {
        let mut stream = self.open(request)?;
        Ok(self.runtime.block_on(stream.receive())?)
    }

    /// Runs a program to its end. Returns the number of bytes of its output.
    fn run(&self, argv: &[&str]) -> Result<u64> {
        let mut stream = self.open(GuestRequest::Exec(process(argv)))?;
        self.runtime.block_on(async {
            let mut bytes = 0;
            loop {
                match stream.next().await.context("the keeper disconnected")? {
                    Event::Data { bytes: part, .. } => bytes += part.len() as u64,
                    event @ Event::Message(_) => match event.parse()? {
                        GuestEvent::Exited(Exit::Code(0)) => return Ok(bytes),
                        GuestEvent::Started { .. } => {}
                        other => bail!("{other:?}"),
                    },
                    other => bail!("{other:?}"),
                }
            }
        })
    }
}

fn process(argv: &[&str]) -> Process {
    Process { argv: argv.iter().map(|&word| word.to_owned()).collect(), ..Process::default() }
}

fn exec(driver: &Driver) -> Result<()> {
    let plain = || timed(|| Ok(Command::new("true").stdin(Stdio::null()).status()?));
    let samples = interleaved(
        ROUNDS,
        vec![
            ("exec of true", Box::new(|| timed(|| driver.run(&["true"])))),
            ("fork and exec of true", Box::new(plain)),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("goal: 2 ms");
    println!("ratio: fork and exec / exec {:.3}", samples[1].ratio_to(&samples[0]));
    Ok(())
}

/// Starts a process in the background, and returns its handle.
fn start(driver: &Driver, process: Process) -> Result<ProcessName> {
    match driver.ask(GuestRequest::StartProcess(StartProcess { process, name: None }))? {
        GuestEvent::ProcessStarted { handle, .. } => Ok(handle),
        other => bail!("{other:?}"),
    }
}

fn echo(driver: &Driver) -> Result<()> {
    let size = Size { columns: 80, rows: 24 };
    let shell =
        Process { terminal: Some(size), stdin: true, ..process(&["sh", "-c", "echo ready; exec cat"]) };
    let handle = start(driver, shell)?;
    let attach = Attach { read_only: false, process: Some(handle), size: Some(size) };
    let (sender, mut receiver) = driver.open(GuestRequest::Attach(attach))?.split();
    driver.runtime.block_on(until(&mut receiver, b"ready\r\n"))?;
    let key = || {
        timed(|| {
            driver.runtime.block_on(async {
                sender.data(STDIN, b"x").await?;
                until(&mut receiver, b"x").await
            })
        })
    };
    let samples =
        interleaved(ROUNDS, vec![("a key until its echo", Box::new(key) as Box<dyn FnMut() -> _>)])?;
    println!("{}\ngoal: 1 ms", samples[0].line());
    Ok(())
}

/// Reads output until the output ends with `text`.
async fn until(receiver: &mut StreamReceiver, text: &[u8]) -> Result<()> {
    let mut seen = Vec::new();
    while !seen.ends_with(text) {
        if let Event::Data { bytes, .. } = receiver.next().await.context("the keeper disconnected")? {
            seen.extend_from_slice(&bytes);
        }
    }
    Ok(())
}

fn throughput(driver: &Driver, scene: &Scene) -> Result<()> {
    let argv = ["head", "-c", &OUTPUT.to_string(), "/dev/zero"];
    let memory =
        || of_home(&scene.label()).iter().map(|process| process.resident - process.shared).sum::<u64>();
    let before = memory();
    let ours = || {
        let started = Instant::now();
        ensure!(driver.run(&argv)? == OUTPUT);
        Ok(started.elapsed())
    };
    let pipe = || -> Result<Duration> {
        let started = Instant::now();
        let mut child = Command::new(argv[0]).args(&argv[1..]).stdout(Stdio::piped()).spawn()?;
        let mut output = child.stdout.take().context("a pipe")?;
        let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
        loop {
            match output.read(&mut buffer)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
        ensure!(child.wait()?.success() && bytes == OUTPUT);
        Ok(started.elapsed())
    };
    let contenders: Vec<Contender<'_>> =
        vec![("1 GiB of output", Box::new(ours)), ("a bare pipe", Box::new(pipe))];
    let samples = interleaved(5, contenders)?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    let speed = samples[0].ratio_to(&samples[1]).recip();
    println!("speed / pipe: {speed:.2}; goal 0.5");
    println!("ratio: output / pipe {speed:.3}");
    println!("memory: {:.1} MiB more; goal 8", mib(memory().saturating_sub(before)));
    Ok(())
}

fn list(driver: &Driver) -> Result<()> {
    for _ in 0..50 {
        start(driver, process(&["sh", "-c", "sleep 600 & sleep 600 & sleep 600 & sleep 600"]))?;
    }
    let mut processes = 0;
    let listed = || {
        timed(|| match driver.ask(GuestRequest::ListProcesses)? {
            GuestEvent::Processes { processes: all } => {
                processes = all.iter().map(|process| process.processes).sum();
                Ok(())
            }
            other => bail!("{other:?}"),
        })
    };
    let samples = interleaved(50, vec![("a list of processes", Box::new(listed) as Box<dyn FnMut() -> _>)])?;
    ensure!(processes >= 200, "{processes} processes");
    println!("{}\n{processes} processes; goal: 5 ms", samples[0].line());
    Ok(())
}

/// Kills the keeper several times, and measures how long the watcher takes to start a new keeper.
fn takeover(scene: &Scene) -> Result<()> {
    let (host, slug) = (scene.host()?, BOTTLE.parse()?);
    let keeper = || match Store::of(&host).state(&slug) {
        Some(State::Alive(record)) if record.status == Status::Running => record.keeper,
        _ => None,
    };
    let killed = || {
        let before = keeper().context("a keeper")?;
        let pid = before.split(':').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        let started = Instant::now();
        kill_process(pid.context("a pid")?, Signal::KILL)?;
        while keeper().is_none_or(|now| now == before) {
            ensure!(started.elapsed() < Duration::from_secs(30), "no keeper takes over");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = started.elapsed();
        // If keepers die repeatedly within ten seconds of their start, the watcher pauses before it starts the next
        // keeper. This wait avoids the watcher's pause.
        std::thread::sleep(Duration::from_secs(11));
        Ok(took)
    };
    let samples = interleaved(
        5,
        vec![("a killed keeper until the next one serves", Box::new(killed) as Box<dyn FnMut() -> _>)],
    )?;
    println!("{}\ngoal: 2 s", samples[0].line());
    Ok(())
}

fn on_docker() -> Result<()> {
    if let Err(missing) = engine::here() {
        println!("skipped: {missing}");
        return Ok(());
    }
    let scene = Scene::on("docker", &["sleep", "36000"])?;
    scene.start_detached(BOTTLE)?;
    let container = format!("bottle-{}-agent-{BOTTLE}", scene.label());
    let docker = || {
        timed(|| {
            let status = Command::new("docker").args(["exec", &container, "true"]).status()?;
            ensure!(status.success());
            Ok(())
        })
    };
    let samples: Vec<Sample> = interleaved(
        30,
        vec![
            ("bottle exec on Docker", Box::new(|| timed(|| scene.bottle(&["exec", BOTTLE, "--", "true"])))),
            ("docker exec", Box::new(docker)),
        ],
    )?;
    samples.iter().for_each(|sample| println!("{}", sample.line()));
    println!("bottle exec / docker exec: {:.2}; goal 0.3", samples[0].ratio_to(&samples[1]));
    println!("ratio: docker exec / bottle exec {:.2}", samples[1].ratio_to(&samples[0]));
    scene.bottle(&["stop", BOTTLE, "--time", "0"])?;
    Ok(())
}

impl Scene {
    /// Returns a host that uses the `$BOTTLE_HOME` of this scene.
    fn host(&self) -> Result<Host> {
        Ok(Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: self.bottle_home(),
            user_home: self.bottle_home(),
            runtime: self.runtime(),
            program: std::env::current_exe()?,
        })
    }
}
