//! Tests every fault in every state of a bottle on Docker. Afterwards, the work exists, or its loss is reported before
//! anything replaces it.
//!
//! The tests use one private engine, one after the other, because starting an engine takes seconds. Some tests replace
//! it by a second engine.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bottle_host::home_hash;
use bottle_test_support::home::TestHome;
use bottle_test_support::own_engine::OwnEngine;
use bottle_test_support::program::Outcome;
use bottle_test_support::skip;

use crate::left::all_with;
use crate::{kill_keeper, status};

/// A fault of a bottle, its keeper or its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillKeeper,
    KillBundle,
    KillKeeperAndBundle,
    KillEngine,
    RestartEngine,
    OtherEngine,
    EngineDown,
    ContainerRemoved,
    ImageRemoved,
    DiskFull,
}

/// The state of the bottle when the fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A client is attached.
    Running,
    Detached,
    /// The bottle ended, and its files are kept.
    Kept,
    /// The bottle ended, and only its snapshot is left.
    Committed,
}

const BOTTLE: &str = "---\nbackend: docker\nagent_provider: {template: command, command: [/bin/sleep, '600'], dockerfile: base}\n---\n";

/// The content of the file that must not be lost.
const WORK: &str = "work\n";

/// The size of the engine's disk, which has room for the base image, a snapshot and a copy of the snapshot.
const DISK: &str = "1400m";

/// Time limit for a step of the engine, of a keeper or of a command.
const PATIENCE: Duration = Duration::from_secs(120);

/// The texts that report lost work. A message about lost work contains one of them.
const LOSSES: [&str; 5] = [
    "its files are lost",
    "removed by something else",
    "its snapshot was deleted",
    "lost its files",
    "its files are missing",
];

/// The engines and the home that all tests share.
struct World {
    home: TestHome,
    engine: OwnEngine,
    /// An engine without containers, volumes and images.
    other: OwnEngine,
}

/// The number of tests of this module, after which the engines end.
const TESTS: usize = 41;

static FINISHED: AtomicUsize = AtomicUsize::new(0);
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The shared engines, while one test uses them.
struct Turn(MutexGuard<'static, Option<World>>);

impl Turn {
    /// Waits for the engines, and starts them if this is the first test. Returns `None` and reports the skipped test if
    /// this machine cannot run private engines.
    fn take(test: &str) -> Option<Self> {
        let mut turn = Self(WORLD.lock().unwrap_or_else(PoisonError::into_inner));
        if turn.0.is_none() {
            match World::new() {
                Ok(world) => *turn.0 = Some(world),
                Err(why) => {
                    skip::aloud(test, &why);
                    return None;
                }
            }
        }
        let world = turn.world();
        // A test that failed may have left the engine down or its disk full.
        if !world.engine.is_up() {
            world.engine.start_again().expect("the engine starts");
        }
        let _ = world.engine.empty();
        Some(turn)
    }

    fn world(&mut self) -> &mut World {
        self.0.as_mut().expect("a world")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if FINISHED.fetch_add(1, Ordering::Relaxed) + 1 == TESTS {
            *self.0 = None;
        }
    }
}

impl World {
    fn new() -> Result<Self, String> {
        if let Some(why) = OwnEngine::missing() {
            return Err(why);
        }
        let engine = OwnEngine::start(DISK).expect("an engine");
        if engine.take_base().is_err() {
            return Err("no engine here has the base image: run scripts/base-image".to_owned());
        }
        let other = OwnEngine::start("64m").expect("another engine");
        let mut home = TestHome::new().expect("a home");
        home.write("home/.bottle/base", "FROM debian:bookworm-slim\n").expect("a dockerfile");
        home.write("home/.bottle/settings.yml", "docker: {transport: socket}\n").expect("settings");
        home.bottle("sleeper", BOTTLE).expect("bottle");
        home.agent("sleeper", "---\nbottle: sleeper\n---\n").expect("agent");
        let talker = BOTTLE.replace("[/bin/sleep, '600']", "[sh, -c, 'echo ready; exec sleep 600']");
        home.bottle("talker", &talker).expect("bottle");
        home.agent("talker", "---\nbottle: talker\n---\n").expect("agent");
        home.env("DOCKER_HOST", engine.address());
        let world = Self { home, engine, other };
        let first = world.run(&["start", "sleeper", "--detach", "--yes", "-q", "--label", "first"]);
        if first.stderr.contains("cargo xtask dist") {
            return Err("there is no dist/bottle".to_owned());
        }
        let _ = first.expect_code(0);
        world.end("first");
        Ok(world)
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let mut program = self.home.program(arguments.iter().copied()).expect("program");
        program.deadline(PATIENCE).run().expect("run")
    }

    fn done(&self, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, 0, "{arguments:?}: {}", outcome.stderr);
        outcome
    }

    fn on_other(&self, arguments: &[&str]) -> Outcome {
        let mut program = self.home.program(arguments.iter().copied()).expect("program");
        program.env("DOCKER_HOST", self.other.address()).deadline(PATIENCE).run().expect("run")
    }

    fn container(&self, part: &str, slug: &str) -> String {
        format!("bottle-{}-{part}-{slug}", home_hash(&self.home.bottle_home()))
    }

    fn docker(&self, arguments: &[&str]) -> String {
        self.engine.docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?}"))
    }

    fn wait_for(&self, slug: &str, wanted: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = status(&self.home, slug).unwrap_or_else(|| "nothing".to_owned());
            if wanted.contains(&now.as_str()) {
                return now;
            }
            assert!(Instant::now() < end, "{slug} is {now}, not {wanted:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Brings a bottle with work into this state. Returns the attached client.
    fn prepare(&self, slug: &str, state: State) -> Option<Child> {
        let start = ["start", "sleeper", "--yes", "-q", "--label", slug];
        let client = if state == State::Running {
            let mut command = self.home.program(start).expect("program").command();
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            Some(command.spawn().expect("started"))
        } else {
            self.done(&[&start[..], &["--detach"]].concat());
            None
        };
        self.wait_for(slug, &["running"]);
        self.done(&["exec", slug, "--", "sh", "-c", "echo work >note"]);
        if state == State::Committed {
            self.done(&["commit", slug, "-q"]);
        }
        if matches!(state, State::Kept | State::Committed) {
            self.done(&["stop", slug, "--time", "0"]);
            self.wait_for(slug, &["kept"]);
        }
        client
    }

    /// Causes the fault, and runs the commands that a user runs meanwhile. Returns the messages.
    fn strike(&mut self, slug: &str, state: State, fault: Fault) -> String {
        let ended = matches!(state, State::Kept | State::Committed);
        let mut said = String::new();
        let mut note = |outcome: Outcome| said += &outcome.transcript();
        let resume = ["resume", slug, "--detach", "--yes", "-q"];
        let meanwhile: [&[&str]; 3] =
            [&["list"], &["cleanup", "--yes"], &["resume", slug, "--detach", "--yes"]];
        match fault {
            Fault::KillKeeper => {
                if ended {
                    note(self.done(&resume));
                }
                kill_keeper(&self.home, slug);
            }
            Fault::KillBundle => {
                if ended {
                    note(self.done(&resume));
                }
                self.docker(&["kill", &self.container("bundle", slug)]);
            }
            Fault::KillKeeperAndBundle => {
                kill_keeper(&self.home, slug);
                self.docker(&["kill", &self.container("bundle", slug)]);
            }
            Fault::KillEngine | Fault::RestartEngine => {
                if fault == Fault::KillEngine {
                    self.engine.stop().expect("killed");
                } else {
                    self.engine.quit().expect("ended");
                }
                self.engine.start_again().expect("started again");
                if !ended {
                    self.wait_for(slug, &["kept"]);
                }
            }
            Fault::OtherEngine => {
                if state == State::Detached {
                    kill_keeper(&self.home, slug);
                }
                meanwhile.iter().for_each(|arguments| note(self.on_other(arguments)));
            }
            Fault::EngineDown => {
                self.engine.stop().expect("killed");
                meanwhile.iter().for_each(|arguments| note(self.run(arguments)));
                self.engine.start_again().expect("started again");
                if !ended {
                    self.wait_for(slug, &["kept"]);
                }
            }
            Fault::ContainerRemoved => {
                // A bottle of which only the snapshot is left has no container.
                let _ = self.engine.docker(&["rm", "--force", "--volumes", &self.container("agent", slug)]);
                if !ended {
                    self.wait_for(slug, &["ended", "kept", "nothing"]);
                }
            }
            Fault::ImageRemoved => {
                let image = match state {
                    State::Committed => {
                        let listed = self.done(&["snapshots", "--json"]).json().expect("JSON");
                        let mut all = listed.as_array().expect("a list").iter();
                        let newest = all.rfind(|snapshot| snapshot["slug"] == slug);
                        newest.expect("a snapshot")["reference"].as_str().expect("text").to_owned()
                    }
                    _ => self.docker(&["inspect", "--format", "{{.Image}}", &self.container("agent", slug)]),
                };
                // The engine keeps the image of a running container.
                let _ = self.engine.docker(&["rmi", "--force", &image]);
            }
            Fault::DiskFull => {
                self.engine.fill().expect("filled");
                if ended {
                    note(self.run(&resume));
                } else {
                    note(self.run(&["commit", slug]));
                    note(self.run(&["stop", slug, "--time", "0"]));
                }
                note(self.run(&["cleanup", "--yes"]));
                self.engine.empty().expect("emptied");
            }
        }
        said
    }

    /// Reads the work as a user does: resumes a bottle that ended. Returns the work if it exists, and adds the messages
    /// to `said`.
    fn work(&self, slug: &str, said: &mut String) -> Option<String> {
        for _ in 0..4 {
            *said += &self.run(&["cleanup", "--yes"]).transcript();
            match status(&self.home, slug).as_deref() {
                Some("kept") => {
                    let resumed = self.run(&["resume", slug, "--detach", "--yes"]);
                    assert_eq!(resumed.code, 0, "{}\n{said}", resumed.transcript());
                    *said += &resumed.transcript();
                }
                Some("running" | "unkept") => {
                    let read = self.run(&["exec", slug, "--", "cat", "note"]);
                    *said += &read.transcript();
                    if read.code == 0 || read.stderr.contains("No such file") {
                        return (read.code == 0).then_some(read.stdout);
                    }
                    // A keeper of a killed client may be ending the bottle.
                    self.wait_for(slug, &["kept", "ended", "orphaned"]);
                }
                Some(other) => {
                    *said += &format!("{slug} is {other}\n");
                    *said += &self.run(&["resume", slug]).transcript();
                    return None;
                }
                None => return None,
            }
        }
        None
    }

    /// Removes the bottle, and checks that nothing of it is left.
    fn end(&self, slug: &str) {
        if status(&self.home, slug).as_deref() == Some("running") {
            let _ = self.run(&["stop", slug, "--time", "0"]);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            // The keeper of a killed client ends the bottle in the background.
            if status(&self.home, slug).as_deref() == Some("kept") {
                let _ = self.run(&["discard", slug, "--yes"]);
                let _ = self.run(&["snapshots", "rm", slug]);
            }
            let cleaned = self.run(&["cleanup", "--yes"]);
            let label = format!("label=bottle.slug={slug}");
            let lists: [&[&str]; 4] = [
                &["ps", "--all", "--quiet", "--filter", &label],
                &["network", "ls", "--quiet", "--filter", &label],
                &["volume", "ls", "--quiet", "--filter", &label],
                &["images", "--quiet", "--filter", &format!("label=bottle.kept.of={slug}")],
            ];
            let left: String = lists.iter().map(|list| self.docker(list)).collect();
            if left.is_empty() && status(&self.home, slug).is_none_or(|status| status == "ended") {
                return;
            }
            assert!(Instant::now() < end, "{slug}: {left} is left: {}", cleaned.transcript());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether the fault itself destroys the only copy of the work.
fn destroys(fault: Fault, state: State) -> bool {
    match fault {
        Fault::ContainerRemoved => state != State::Committed,
        Fault::ImageRemoved => state == State::Committed,
        _ => false,
    }
}

fn check(name: &str, fault: Fault, state: State) {
    let Some(mut turn) = Turn::take(name) else { return };
    let world = turn.world();
    let slug = name.replace('_', "-");
    let mut client = world.prepare(&slug, state);
    let mut said = world.strike(&slug, state, fault);
    let work = world.work(&slug, &mut said);
    if let Some(client) = &mut client {
        let _ = client.kill();
        let _ = client.wait();
        let mut output = client.stderr.take().expect("its output");
        output.read_to_string(&mut said).expect("read");
    }
    if destroys(fault, state) {
        assert_eq!(work, None, "{said}");
        assert!(LOSSES.iter().any(|loss| said.contains(loss)), "the loss is not reported: {said}");
    } else {
        assert_eq!(work.as_deref(), Some(WORK), "{said}");
    }
    world.end(&slug);
}

macro_rules! cells {
    ($($name:ident: $fault:ident, $state:ident;)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name), Fault::$fault, State::$state);
            }
        )*
    };
}

cells! {
    kill_keeper_running: KillKeeper, Running;
    kill_keeper_detached: KillKeeper, Detached;
    kill_keeper_kept: KillKeeper, Kept;
    kill_keeper_committed: KillKeeper, Committed;
    kill_bundle_running: KillBundle, Running;
    kill_bundle_detached: KillBundle, Detached;
    kill_bundle_kept: KillBundle, Kept;
    kill_bundle_committed: KillBundle, Committed;
    kill_keeper_and_bundle_running: KillKeeperAndBundle, Running;
    kill_keeper_and_bundle_detached: KillKeeperAndBundle, Detached;
    kill_engine_running: KillEngine, Running;
    kill_engine_detached: KillEngine, Detached;
    kill_engine_kept: KillEngine, Kept;
    kill_engine_committed: KillEngine, Committed;
    restart_engine_running: RestartEngine, Running;
    restart_engine_detached: RestartEngine, Detached;
    restart_engine_kept: RestartEngine, Kept;
    restart_engine_committed: RestartEngine, Committed;
    other_engine_running: OtherEngine, Running;
    other_engine_detached: OtherEngine, Detached;
    other_engine_kept: OtherEngine, Kept;
    other_engine_committed: OtherEngine, Committed;
    engine_down_running: EngineDown, Running;
    engine_down_detached: EngineDown, Detached;
    engine_down_kept: EngineDown, Kept;
    engine_down_committed: EngineDown, Committed;
    container_removed_running: ContainerRemoved, Running;
    container_removed_detached: ContainerRemoved, Detached;
    container_removed_kept: ContainerRemoved, Kept;
    container_removed_committed: ContainerRemoved, Committed;
    image_removed_running: ImageRemoved, Running;
    image_removed_detached: ImageRemoved, Detached;
    image_removed_kept: ImageRemoved, Kept;
    image_removed_committed: ImageRemoved, Committed;
    disk_full_running: DiskFull, Running;
    disk_full_detached: DiskFull, Detached;
    disk_full_kept: DiskFull, Kept;
    disk_full_committed: DiskFull, Committed;
}

/// With `live-restore`, containers run while their engine is down. The keeper connects to them again.
#[test]
fn a_bottle_keeps_running_while_its_engine_restarts() {
    let Some(mut turn) = Turn::take("a_bottle_keeps_running_while_its_engine_restarts") else { return };
    let world = turn.world();
    world.engine.stop().expect("killed");
    world.engine.start_with("--live-restore").expect("started");
    world.done(&["start", "talker", "--yes", "-q", "--label", "live", "--detach"]);
    world.done(&["exec", "live", "--", "sh", "-c", "echo work >note"]);
    let mut client = world.home.program(["attach", "live"]).expect("program").command();
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().expect("started");
    let mut heard = [0; 5];
    client.stdout.as_mut().expect("its output").read_exact(&mut heard).expect("the agent is heard");
    let keeper = || all_with(&world.home, "__keeper").into_iter().find(|found| found.is_of("live"));
    assert!(keeper().is_some());
    let begun = |world: &World| {
        world.docker(&["inspect", "--format", "{{.State.StartedAt}}", &world.container("agent", "live")])
    };
    let first = begun(world);
    world.engine.stop().expect("killed");
    world.engine.start_with("--live-restore").expect("started");
    // The same processes run, and the same keeper serves them.
    assert_eq!(world.done(&["exec", "live", "--", "cat", "note"]).stdout, WORK);
    // The attached client names the command that returns to the agent.
    let client = client.wait_with_output().expect("the client's end");
    let said = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() && said.contains("`bottle attach live` returns to it"), "{said}");
    assert_eq!((begun(world), status(&world.home, "live").as_deref()), (first, Some("running")));
    let listed = world.done(&["list", "--json"]).json().expect("JSON");
    let live = listed.as_array().expect("a list").iter().find(|bottle| bottle["slug"] == "live").expect("it");
    assert!(live["services"].as_array().is_some_and(|all| all.iter().all(|one| one["up"] == true)), "{live}");
    world.done(&["stop", "live", "--time", "0"]);
    // An engine that restored running containers may not release their volumes until it restarts.
    world.engine.stop().expect("killed");
    world.engine.start_again().expect("started");
    let mut said = String::new();
    assert_eq!(world.work("live", &mut said).as_deref(), Some(WORK), "{said}");
    world.end("live");
}

/// A user pauses the container. Commands report the pause, even if the keeper is killed meanwhile, and the bottle
/// continues after the pause.
#[test]
fn a_paused_bottle_is_named_and_can_be_stopped() {
    let Some(mut turn) = Turn::take("a_paused_bottle_is_named_and_can_be_stopped") else { return };
    let world = turn.world();
    for lives in [true, false] {
        let slug = if lives { "paused" } else { "alone" };
        world.prepare(slug, State::Detached);
        let agent = world.container("agent", slug);
        let pause = || {
            world.docker(&["pause", &agent]);
            if !lives {
                kill_keeper(&world.home, slug);
            }
        };
        pause();
        let note = format!("{slug}:note");
        for arguments in [&["exec", slug, "--", "true"][..], &["cp", &note, "copy"], &["attach", slug]] {
            let refused = world.run(arguments);
            assert_ne!(refused.code, 0, "{arguments:?}");
            let hint = format!("paused; `docker unpause {agent}` continues it");
            let hint = if lives { hint } else { hint.replace("paused; ", "paused\nhint: ") };
            assert!(refused.stderr.contains(&hint), "{arguments:?}: {}", refused.stderr);
            assert!(refused.took < Duration::from_secs(30), "{arguments:?}: {:?}", refused.took);
        }
        let expected = if lives { "running" } else { "unkept" };
        assert_eq!(status(&world.home, slug).as_deref(), Some(expected));
        world.docker(&["unpause", &agent]);
        assert_eq!(world.done(&["exec", slug, "--", "cat", "note"]).stdout, WORK);
        pause();
        let stopped = world.done(&["stop", slug, "--time", "1"]);
        assert!(stopped.took < Duration::from_secs(30), "{:?}", stopped.took);
        world.wait_for(slug, &["kept"]);
        let mut said = String::new();
        assert_eq!(world.work(slug, &mut said).as_deref(), Some(WORK), "{said}");
        world.end(slug);
    }
}

/// Stops and resumes a kept bottle many times. Its container must stay the same, and its image must get no layer.
/// Prints the median time of a resume.
#[allow(clippy::print_stdout, reason = "a test that prints what it measured")]
fn cycle(world: &World, slug: &str, cycles: usize) {
    world.prepare(slug, State::Kept);
    let facts =
        || world.docker(&["inspect", "--format", "{{.Id}} {{.Image}}", &world.container("agent", slug)]);
    let before = facts();
    let mut took = Vec::new();
    for _ in 0..cycles {
        took.push(world.done(&["resume", slug, "--detach", "--yes", "-q"]).took);
        assert_eq!(world.done(&["exec", slug, "--", "cat", "note"]).stdout, WORK);
        world.done(&["stop", slug, "--time", "0"]);
    }
    took.sort();
    println!("resume: median {:?} of {cycles}", took[took.len() / 2]);
    assert_eq!(facts(), before);
    world.end(slug);
}

#[test]
fn a_kept_bottle_is_resumed_many_times() {
    let Some(mut turn) = Turn::take("a_kept_bottle_is_resumed_many_times") else { return };
    cycle(turn.world(), "many", 8);
}

#[test]
#[ignore = "takes minutes: `.ci/run soak`"]
fn a_kept_bottle_is_resumed_200_times() {
    let Some(mut turn) = Turn::take("a_kept_bottle_is_resumed_200_times") else { return };
    cycle(turn.world(), "more", 200);
}
