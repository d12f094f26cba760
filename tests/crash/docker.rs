//! Kills processes at every call to a container engine, either before the engine receives the call or after it
//! completed the call. Another detached bottle must keep working meanwhile.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bottle_host::home_hash;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::{engine, skip};

use crate::left::{Found, Left, all_with};
use crate::relay::{Relay, Strike, When, Whom};
use crate::{clean_up, kill_keeper, record, said, status};

/// A bottle manifest whose agent exits with success as soon as `/tmp/end` exists.
const PATIENT: &str = "---\nbackend: docker\nagent_provider: {template: command, command: [/bin/sh, -c, \
    'echo here; while [ ! -e /tmp/end ]; do sleep 0.1; done; echo ended well']}\n---\n";
/// Time limit for the removal of everything that belongs to a home. An engine is slow, and several homes are cleaned up
/// at the same time.
const GONE_WITHIN: Duration = Duration::from_secs(180);
/// The time after which the test checks whether a launch succeeded. Most launches take less time.
const LAUNCHES_WITHIN: Duration = Duration::from_secs(3);
/// The number of killed commands that a test must exceed, so that a test that kills nothing fails. Each command makes
/// more calls than this.
const MANY: usize = 8;
/// The number of orphaned bottles. The removal of these bottles takes more calls than the killed cleanups make.
const ORPHANS: usize = 8;
/// The number of commands that run at the same time. An engine performs most of its work one call after the other.
const AT_ONCE: usize = 4;

/// A home on an engine. It contains another detached bottle, which must not be affected.
struct World {
    home: TestHome,
    /// Only one cleanup runs at a time. Two concurrent cleanups would find the same bottles, and one cleanup would find
    /// a bottle locked.
    cleaning: Mutex<()>,
    /// The volume with the program. Its labels name the home that filled the volume, and it remains for all homes.
    /// Empty if another home filled the volume.
    program: Vec<String>,
}

impl World {
    /// Creates the home. Returns `None` and reports the skipped test if there is no engine or no static program.
    fn new(test: &str, settings: &str) -> Option<Self> {
        if let Err(why) = engine::here() {
            skip::aloud(test, &why);
            return None;
        }
        let mut home = TestHome::new().expect("a home");
        home.agent("sleeper", "Sleep.\n").expect("agent").bottle("docker", PATIENT).expect("bottle");
        home.write("home/.bottle/settings.yml", settings).expect("settings");
        let mut world = Self { home, cleaning: Mutex::default(), program: Vec::new() };
        let started = world.run(&world.start("beside", &["--detach"]));
        // Containers need a static build of the program.
        if started.code == 4 {
            skip::aloud(test, &started.stderr);
            return None;
        }
        assert_eq!(started.code, 0, "{}", started.stderr);
        world.program = world.on_the_engine();
        world.program.retain(|line| line.starts_with("volume bottle-program-"));
        Some(world)
    }

    fn start<'a>(&self, label: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let start = ["start", "sleeper", "--bottle", "docker", "--yes", "-q", "--label", label];
        start.into_iter().chain(more.iter().copied()).collect()
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.home.program(arguments.iter().copied()).expect("program").run().expect("run")
    }

    fn done(&self, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, 0, "{arguments:?}: {}", outcome.stderr);
        outcome
    }

    /// Starts a command whose calls go through the relay. Its standard input stays open until the child is dropped.
    fn through(&self, relay: &Relay, arguments: &[&str]) -> Child {
        let mut program = self.home.program(arguments.iter().copied()).expect("program");
        let mut command = program.env("DOCKER_HOST", relay.address()).command();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("started")
    }

    /// Creates a relay. Each command has its own relay, because a keeper that undoes its launch continues to make
    /// calls.
    fn relay(&self, name: &str, strike: Option<Strike>) -> Relay {
        Relay::new(self.home.outside(name), strike)
    }

    /// Runs a command and kills a process at the call that `strike` selects. The number of calls differs slightly
    /// between runs. Returns `None` if the command ended, or its bottle started, without reaching that call.
    fn struck(&self, name: &str, strike: Strike, arguments: &[&str]) -> Option<Struck> {
        let relay = self.relay(name, Some(strike));
        let mut client = self.through(&relay, arguments);
        let begun = Instant::now();
        self.wait_until(&format!("{name} was struck"), || {
            // `bottle list` would ask the keeper to measure the bottle, which is a call that could be struck.
            let runs = || record(&self.home, name).is_some_and(|record| record["status"] == "running");
            let ended = client.try_wait().expect("waited").is_some();
            relay.struck() || ended || (begun.elapsed() > LAUNCHES_WITHIN && runs())
        });
        let struck = relay.spare();
        if struck.is_none() {
            let _ = client.kill();
        }
        let (code, stderr) = said(client);
        assert!(struck.is_none() || code != 0, "{strike:?}: {arguments:?}: {stderr} {:?}", relay.calls());
        struck.map(|call| Struck { changed: call.changes(), of_keeper: !call.is_typed(&relay.calls()) })
    }

    /// Starts a bottle and kills its keeper when the bottle runs.
    fn orphan(&self, slug: &str) {
        let relay = self.relay(slug, None);
        let mut client = self.through(&relay, &self.start(slug, &[]));
        self.wait_until("it runs", || {
            if client.try_wait().expect("waited").is_some() {
                let mut why = String::new();
                client.stderr.as_mut().expect("its words").read_to_string(&mut why).expect("read");
                panic!("{slug} ended: {why}");
            }
            status(&self.home, slug).as_deref() == Some("running")
        });
        keeper_of(&self.home, slug).expect("its keeper").kill();
        assert_ne!(said(client).0, 0);
    }

    fn clean_up(&self) {
        let _alone = self.cleaning.lock().expect("lock");
        clean_up(&self.home);
    }

    fn wait_until(&self, what: &str, mut seen: impl FnMut() -> bool) {
        let end = Instant::now() + GONE_WITHIN;
        while !seen() {
            assert!(Instant::now() < end, "not seen in time: {what}: {:#?}", self.on_the_engine());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The number of images of this bottle that have this label of the home.
    fn images(&self, label: &str, slug: &str) -> usize {
        let home = home_hash(&self.home.bottle_home());
        let [of_home, of_slug] = [format!("label={label}={home}"), format!("label={label}.of={slug}")];
        let list =
            ["images", "--filter", &of_home, "--filter", &of_slug, "--format", "{{.Repository}}:{{.Tag}}"];
        engine::docker(&list).expect("listed").lines().count()
    }

    /// The objects of this home on the engine, found by name and by label, except those of the other bottle.
    fn on_the_engine(&self) -> Vec<String> {
        let home = home_hash(&self.home.bottle_home());
        let lists: [&[&str]; 4] = [
            &["ps", "--all", "--format", "container {{.Names}} {{.Labels}} {{.Status}}"],
            &["network", "ls", "--format", "network {{.Name}} {{.Labels}}"],
            &["volume", "ls", "--format", "volume {{.Name}} {{.Labels}}"],
            &["images", "--all", "--format", "image {{.Repository}}:{{.Tag}}"],
        ];
        let listed = lists.map(|list| engine::docker(list).expect("listed"));
        let labelled = ["bottle.kept", "bottle.snapshot"].map(|label| {
            let filter = format!("label={label}={home}");
            engine::docker(&["images", "--filter", &filter, "--format", "image {{.ID}}"]).expect("listed")
        });
        let ours = |line: &&str| line.contains(&home) && !line.contains("-beside");
        let named = listed.iter().flat_map(|list| list.lines().filter(ours));
        let all = named.chain(labelled.iter().flat_map(|list| list.lines())).map(str::to_owned);
        all.filter(|line| !self.program.contains(line)).collect()
    }

    /// Runs cleanups until only the other bottle is left. Killed processes hold their locks for a moment.
    fn cleanup_leaves_nothing(&self, when: &str) {
        let end = Instant::now() + GONE_WITHIN;
        loop {
            self.clean_up();
            let (left, here) = (self.on_the_engine(), Left::of(&self.home).but_for("beside"));
            if left.is_empty() && here == Left::default() {
                return;
            }
            let listed = || self.run(&["list", "--json"]).stdout;
            assert!(Instant::now() < end, "left {when}: {left:#?} {here:#?} {}", listed());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Uses the other bottle until its agent exits with success. Then asserts that nothing is left.
    fn beside_ends_well(self) {
        assert_eq!(status(&self.home, "beside").as_deref(), Some("running"));
        let mut attach = self.home.program(["attach", "beside"]).expect("program").command();
        attach.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut attached = attach.spawn().expect("attached");
        let mut output = BufReader::new(attached.stdout.take().expect("its output"));
        let mut said = String::new();
        output.read_line(&mut said).expect("read");
        self.done(&["exec", "beside", "--", "touch", "/tmp/end"]);
        output.read_to_string(&mut said).expect("read");
        let ended = attached.wait_with_output().expect("an end");
        let complained = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said == "here\nended well\n", "{said}\n{complained}");
        let end = Instant::now() + GONE_WITHIN;
        while status(&self.home, "beside").as_deref() == Some("running") {
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.done(&["cleanup", "--all", "--yes"]);
    }
}

/// The call at which a process was killed.
struct Struck {
    changed: bool,
    of_keeper: bool,
}

/// Kills a process at each call from `from` on, until a command makes fewer calls. Several commands run in parallel.
/// `work` receives the number of the worker that runs it. At a call that only queries, a process is killed before the
/// call but not after it.
fn at_every_call(
    from: usize,
    whoms: &[Whom],
    work: impl Fn(usize, Strike) -> Option<Struck> + Sync,
) -> usize {
    let (next, struck, ended) = (AtomicUsize::new(from), AtomicUsize::new(0), AtomicBool::new(false));
    let one = |worker, call| {
        let strike = |when, whom| {
            let struck_at = work(worker, Strike { call, when, whom });
            struck.fetch_add(usize::from(struck_at.is_some()), Ordering::Relaxed);
            struck_at
        };
        let first = strike(When::Before, Whom::Caller)?;
        for whom in whoms.iter().filter(|whom| first.changed && (first.of_keeper || **whom == Whom::Caller)) {
            strike(When::After, *whom);
        }
        Some(())
    };
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let (one, next, ended) = (&one, &next, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    if one(worker, next.fetch_add(1, Ordering::Relaxed)).is_none() {
                        ended.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    struck.into_inner()
}

/// A label for the bottle of this strike.
fn name_of(strike: Strike) -> String {
    let Strike { call, when, whom } = strike;
    format!("v-{call}-{when:?}-{whom:?}").to_lowercase()
}

fn keeper_of(home: &TestHome, slug: &str) -> Option<Found> {
    all_with(home, "__keeper").into_iter().find(|found| found.is_of(slug))
}

/// The index of the first call that the keeper makes, among all calls of this command.
fn first_of_keeper(world: &World, arguments: &[&str]) -> usize {
    let relay = world.relay("counting", None);
    assert_eq!(said(world.through(&relay, arguments)).0, 0);
    let calls = relay.calls();
    calls.iter().position(|call| !call.is_typed(&calls)).expect("a keeper's")
}

fn launches_are_killed(world: World, from: usize, whoms: &[Whom]) {
    let struck = at_every_call(from, whoms, |_, strike| {
        let label = name_of(strike);
        world.struck(&label, strike, &world.start(&label, &[]))
    });
    assert!(struck > MANY, "{struck}");
    world.cleanup_leaves_nothing("of launches");
    world.beside_ends_well();
}

#[test]
fn a_launch_by_network_is_killed_at_every_call() {
    let test = "a_launch_by_network_is_killed_at_every_call";
    let Some(world) = World::new(test, "docker: {transport: network}\n") else { return };
    // The command that the user typed is also killed while the keeper makes calls.
    launches_are_killed(world, 0, &[Whom::Caller, Whom::First]);
}

#[test]
fn a_launch_by_socket_is_killed_at_every_call() {
    let test = "a_launch_by_socket_is_killed_at_every_call";
    let Some(world) = World::new(test, "{}\n") else { return };
    // Up to the keeper's first call, the launch is the same as over a network.
    let from = first_of_keeper(&world, &world.start("counted", &["--detach"]));
    world.done(&["stop", "counted", "--time", "0"]);
    launches_are_killed(world, from, &[Whom::Caller]);
}

#[test]
fn a_commit_is_killed_at_every_call() {
    let test = "a_commit_is_killed_at_every_call";
    let Some(world) = World::new(test, "{}\n") else { return };
    let slugs: Vec<String> = (0..AT_ONCE).map(|worker| format!("one-{worker}")).collect();
    for slug in &slugs {
        world.done(&world.start(slug, &["--detach"]));
        world.done(&["exec", slug, "--", "sh", "-c", "echo here >note"]);
        world.done(&["commit", slug, "-q"]);
    }
    // The keeper that the next command starts adopts the bottle, and makes its calls through that command's relay.
    let struck = at_every_call(0, &[Whom::Caller], |worker, strike| {
        let slug = &slugs[worker];
        kill_keeper(&world.home, slug);
        let struck = world.struck(&name_of(strike), strike, &["commit", slug, "-q"]);
        // Cleanup removes snapshots that no state names, but not the snapshots of a bottle with a keeper. One complete
        // snapshot always exists.
        world.wait_until(&format!("one snapshot of {slug} after {strike:?}"), || {
            kill_keeper(&world.home, slug);
            world.clean_up();
            world.images("bottle.snapshot", slug) == 1
        });
        assert_eq!(world.done(&["exec", slug, "--", "cat", "note"]).stdout, "here\n", "{strike:?}");
        struck
    });
    assert!(struck > MANY, "{struck}");
    for slug in &slugs {
        world.done(&["stop", slug, "--time", "0"]);
    }
    world.done(&["resume", &slugs[0], "--snapshot", "--detach", "--yes", "-q"]);
    assert_eq!(world.done(&["exec", &slugs[0], "--", "cat", "note"]).stdout, "here\n");
    world.done(&["stop", &slugs[0], "--time", "0"]);
    for slug in &slugs {
        world.done(&["snapshots", "rm", slug]);
    }
    world.cleanup_leaves_nothing(test);
    world.beside_ends_well();
}

#[test]
fn a_keeper_is_killed_while_the_engine_commits() {
    let test = "a_keeper_is_killed_while_the_engine_commits";
    let Some(world) = World::new(test, "{}\n") else { return };
    // The file is large enough that the commit takes some time, during which the engine pauses the container.
    let large = ["dd", "if=/dev/zero", "of=/home/agent/large", "bs=1M", "count=400", "status=none"];
    world.done(&[&["exec", "beside", "--"], &large[..]].concat());
    let mut commit = world.home.program(["commit", "beside"]).expect("program").command();
    commit.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let commit = commit.spawn().expect("started");
    let label = format!("label=bottle.home={}", home_hash(&world.home.bottle_home()));
    let paused = ["ps", "-q", "--filter", "status=paused", "--filter", &label];
    world.wait_until("the engine holds it still", || {
        engine::docker(&paused).is_some_and(|ids| !ids.is_empty())
    });
    kill_keeper(&world.home, "beside");
    let (code, complained) = said(commit);
    assert_ne!(code, 0, "{complained}");
    let cleaned = world.done(&["cleanup", "--yes"]);
    assert!(cleaned.stderr.contains("beside runs without a keeper"), "{}", cleaned.stderr);
    world.done(&["exec", "beside", "--", "rm", "/home/agent/large"]);
    world.beside_ends_well();
}

#[test]
fn a_cleanup_is_killed_at_every_call() {
    let test = "a_cleanup_is_killed_at_every_call";
    let Some(world) = World::new(test, "{}\n") else { return };
    // The cleanup finds orphaned bottles.
    let orphans: Vec<String> = (0..ORPHANS).map(|orphan| format!("orphan-{orphan}")).collect();
    let shared = &world;
    for some in orphans.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for slug in some {
                scope.spawn(move || shared.orphan(slug));
            }
        });
    }
    // Each cleanup finds fewer items than the previous one. A cleanup that was not killed ends the loop.
    let mut strikes = 0;
    loop {
        let when = if strikes % 2 == 0 { When::Before } else { When::After };
        let strike = Strike { call: strikes / 2, when, whom: Whom::Caller };
        let relay = world.relay(&format!("cleanup-{strikes}"), Some(strike));
        let (code, stderr) = said(world.through(&relay, &["cleanup", "--yes"]));
        if !relay.struck() {
            assert_eq!(code, 0, "{stderr}");
            break;
        }
        strikes += 1;
    }
    world.cleanup_leaves_nothing(test);
    world.beside_ends_well();
}

#[test]
fn a_resume_is_killed_at_every_call() {
    let test = "a_resume_is_killed_at_every_call";
    // Each worker has its own home, because a cleanup locks every bottle that it inspects.
    let worlds: Vec<World> = (0..AT_ONCE).filter_map(|_| World::new(test, "{}\n")).collect();
    let Some(first) = worlds.first() else { return };
    let again = ["resume", "one", "--detach", "--yes", "-q"];
    for world in &worlds {
        world.done(&world.start("one", &["--detach"]));
        world.done(&["exec", "one", "--", "sh", "-c", "echo here >note"]);
        world.done(&["stop", "one", "--time", "0"]);
    }
    let from = first_of_keeper(first, &again);
    first.done(&["stop", "one", "--time", "0"]);
    let struck = at_every_call(from, &[Whom::Caller], |worker, strike| {
        let world = &worlds[worker];
        let struck = world.struck(&name_of(strike), strike, &again);
        if struck.is_none() {
            world.done(&["stop", "one", "--time", "0"]);
        }
        world.wait_until(&format!("it is kept after {strike:?}"), || {
            world.clean_up();
            status(&world.home, "one").as_deref() == Some("kept")
        });
        struck
    });
    assert!(struck > MANY, "{struck}");
    for world in worlds {
        world.done(&again);
        assert_eq!(world.done(&["exec", "one", "--", "cat", "note"]).stdout, "here\n");
        world.done(&["stop", "one", "--time", "0"]);
        // The stopped bottle is kept, and there is no user who could discard it.
        let kept = format!("bottle-{}-agent-one", home_hash(&world.home.bottle_home()));
        assert!(engine::docker(&["rm", "--force", "--volumes", &kept]).is_some(), "{kept}");
        world.done(&["cleanup", "--yes"]);
        assert_eq!(world.on_the_engine(), [] as [&str; 0]);
        world.beside_ends_well();
    }
}
