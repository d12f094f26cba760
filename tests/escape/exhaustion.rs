//! Exhausts processes, memory and disk space. The machine must stay usable, and the bottle must end with a message.

use std::time::Duration;

use bottle_backend::Prepared;
use bottle_plan::Resources;
use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Limited, Overrun};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;

use crate::attempts;
use crate::fixture::{Bottle, Fixture, close, every_isolating_backend};

/// Time limit for a limit to take effect on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a bottle with these limits, if the backend supports them.
async fn limited<'a>(fixture: &'a Fixture, slug: &str, resources: Resources) -> Option<Bottle<'a>> {
    let mut planned = fixture.planned(slug).plan.clone();
    planned.resources = resources.clone();
    if let Err(unsupported) = fixture.backend.supports(&planned) {
        skip::aloud(&format!("{slug} on {}", fixture.name()), &unsupported);
        return None;
    }
    let bottle = fixture.bottle_with(slug, Prepared::default(), resources).await;
    close(bottle.provisioned().await).await;
    Some(bottle)
}

/// Runs a script in a provisioned bottle and returns its output and exit. Files in a tmpfs belong to no process, so the
/// kernel may kill pid 1 to free their memory. The function treats this case as if the kernel had killed every process.
async fn ends(bottle: &Bottle<'_>, script: &str) -> (String, Exit) {
    let ended = tokio::time::timeout(PATIENCE, bottle.once(&["/usr/bin/python3", "-c", script])).await;
    ended.expect("noticed in time").unwrap_or_else(|gone| (format!("{gone:?}"), Exit::Signal(9)))
}

/// The limit that the bottle exceeded, queried as the keeper does.
async fn overrun(bottle: &Bottle<'_>) -> Option<Overrun> {
    if let Some(overrun) = bottle.fixture.backend.overrun(bottle.slug()).await {
        return Some(overrun);
    }
    let channel = bottle.connect().await;
    let mut stream = channel.open(&GuestRequest::Status).await.expect("asked");
    match stream.receive::<GuestEvent>().await.expect("answered") {
        GuestEvent::Status { overrun, .. } => overrun,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_stays_in_its_bottle() {
    if !attempts::possible("a fork bomb") {
        return;
    }
    let bomb = "import os, time\n\
        made = 0\n\
        while True:\n\
        \x20 try:\n\
        \x20   if os.fork() == 0: time.sleep(30); os._exit(0)\n\
        \x20   made += 1\n\
        \x20   if made == 200: break\n\
        \x20 except OSError: break\n\
        print(made)\n";
    for fixture in every_isolating_backend().await {
        let other = fixture.bottle("quiet").await;
        close(other.provisioned().await).await;
        let small = Resources { pids: Some(64), ..Resources::default() };
        let bottle = limited(&fixture, "bomb", small).await.expect("processes are limited everywhere");
        let (said, _) = ends(&bottle, bomb).await;
        let made: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{}: {said}", fixture.name()));
        assert!((10..64).contains(&made), "{}: {made}", fixture.name());
        // As a control, a bottle with a higher limit can start more processes.
        assert_eq!(ends(&other, bomb).await.0.trim(), "200", "{}", fixture.name());
        std::process::Command::new("true").status().expect("the machine is usable");
        // A bottle at its process limit still answers, and is removed in time.
        assert_eq!(overrun(&bottle).await, None, "{}", fixture.name());
        let removed = tokio::time::timeout(PATIENCE, bottle.remove()).await;
        removed.expect("in time");
        other.remove().await;
    }
}

/// Ways to allocate memory: a name, and a Python script that allocates `n` MiB.
const WAYS: [(&str, &str); 3] = [
    ("its own", "x = bytearray(n << 20)\nfor i in range(0, n << 20, 4096): x[i] = 1"),
    ("shared", "import mmap; x = mmap.mmap(-1, n << 20)\nfor i in range(0, n << 20, 4096): x[i] = 1"),
    ("files", "f = open('/dev/shm/f', 'wb')\nfor i in range(n): f.write(bytes(1 << 20)); f.flush()"),
];

#[tokio::test(flavor = "multi_thread")]
async fn memory_ends_at_its_limit() {
    if !attempts::possible("memory") {
        return;
    }
    const LIMIT: u64 = 192 << 20;
    for fixture in every_isolating_backend().await {
        for (way, script) in WAYS {
            let asked = Resources { memory: Some(LIMIT), ..Resources::default() };
            let Some(bottle) = limited(&fixture, "hungry", asked).await else { continue };
            let take = |n: u64| {
                format!("import time\nn = {n}\n{script}\nprint('had', n, flush=True)\ntime.sleep(30)\n")
            };
            let little = take(64).replace("sleep(30)", "sleep(1)");
            assert_eq!(ends(&bottle, &little).await.0, "had 64\n", "{}: {way}", fixture.name());
            let (said, exit) = ends(&bottle, &take(400)).await;
            assert_eq!(exit, Exit::Signal(9), "{}: {way}: {said}", fixture.name());
            if fixture.name() == "linux" {
                let expected = Overrun { resource: Limited::Memory, limit: LIMIT, asked: true };
                assert_eq!(overrun(&bottle).await, Some(expected), "{way}");
            }
            bottle.remove().await;
            assert_eq!(bottle.found().await, [], "{}: {way}", fixture.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_ends_at_its_limit() {
    if !attempts::possible("the disk") {
        return;
    }
    const LIMIT: u64 = 32 << 20;
    for fixture in every_isolating_backend().await {
        let own: &[&str] = if fixture.is_in_image() {
            &["/usr/lib", "/opt", "/d"]
        } else {
            &["/usr/local/lib", "/opt", "/home/agent"]
        };
        for place in own.iter().chain(&["/workspace"]) {
            let asked = Resources { disk: Some(LIMIT), ..Resources::default() };
            let Some(bottle) = limited(&fixture, "greedy", asked).await else { continue };
            let little = ends(&bottle, &fill(place, 8, 5)).await;
            assert_eq!(little, ("wrote\n".to_owned(), Exit::Code(0)), "{}: {place}", fixture.name());
            let (_, exit) = ends(&bottle, &fill(place, 64, 60)).await;
            assert_eq!(exit, Exit::Signal(9), "{}: {place}", fixture.name());
            let over = overrun(&bottle).await.expect("noticed");
            let expected = Overrun { resource: Limited::Disk, limit: LIMIT, asked: true };
            assert_eq!(over, expected, "{}: {place}", fixture.name());
            bottle.remove().await;
        }
    }
}

/// Writes this many MiB below a directory and waits.
fn fill(place: &str, n: u64, seconds: u64) -> String {
    format!(
        "import os, time\n\
         os.makedirs('{place}/a/b', exist_ok=True)\n\
         for i in range({n}):\n\
         \x20 f = open('{place}/a/b/%d' % i, 'wb'); f.write(os.urandom(1 << 20)); f.close()\n\
         print('wrote', flush=True); time.sleep({seconds})\n"
    )
}

/// The files of an image are not counted towards the bottle's disk limit, so the removal of these files does not free
/// space under the limit.
#[tokio::test(flavor = "multi_thread")]
async fn removing_image_files_frees_no_disk_limit() {
    const LIMIT: u64 = 8 << 20;
    for fixture in every_isolating_backend().await.into_iter().filter(Fixture::is_in_image) {
        let asked = Resources { disk: Some(LIMIT), ..Resources::default() };
        let Some(bottle) = limited(&fixture, "trader", asked).await else { continue };
        let (said, exit) = ends(&bottle, REMOVES).await;
        let removed: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{said} {exit:?}"));
        assert!(removed > LIMIT, "{removed}");
        assert_eq!(ends(&bottle, "print('goes on')").await.0, "goes on\n");
        assert_eq!(ends(&bottle, &fill("/opt", 20, 60)).await.1, Exit::Signal(9));
        let expected = Overrun { resource: Limited::Disk, limit: LIMIT, asked: true };
        assert_eq!(overrun(&bottle).await, Some(expected));
        bottle.remove().await;
    }
}

/// Removes the programs in `/usr/bin` except Python and `sh`, and prints their total size in bytes.
const REMOVES: &str = "import os, time\n\
    taken, directory = 0, '/usr/bin/'\n\
    names = [n for n in os.listdir(directory) if not n.startswith('python') and n != 'sh']\n\
    for name in names: taken += os.path.getsize(directory + name); os.remove(directory + name)\n\
    print(taken, flush=True)\n\
    time.sleep(5)\n";

#[tokio::test(flavor = "multi_thread")]
async fn processor_time_is_limited() {
    if !attempts::possible("processors") {
        return;
    }
    // The work takes 0.3 s of processor time, which is one and a half seconds with a fifth of a processor.
    let work = "import time\n\
        begun = time.monotonic()\n\
        while time.process_time() < 0.3: pass\n\
        print(time.monotonic() - begun > 1.0)\n";
    for fixture in every_isolating_backend().await {
        let fifth = Resources { cpus: Some(200), ..Resources::default() };
        let Some(bottle) = limited(&fixture, "slow", fifth).await else { continue };
        assert_eq!(ends(&bottle, work).await.0, "True\n", "{}", fixture.name());
        bottle.remove().await;
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

/// Checks the message that the user gets, in a bottle on the host's system and in a bottle on an image. The message
/// contains the limit and its manifest key.
fn ends_with_a_word(resource: &str, limit: &str, script: &str, word: &str) -> anyhow::Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs(word, "linux")? || !attempts::possible(word) {
        return Ok(());
    }
    bottle_test_support::small_root::make(&home.bottle_home().join("small"))?;
    for (name, image) in [("hungry", ""), ("imaged", ", image: ./small")] {
        home.agent(name, &format!("---\nbottle: {name}\n---\n"))?;
        home.bottle(
            name,
            &format!(
                "---\nbackend: linux\nresources: {{{resource}: {limit}}}\n\
                 agent_provider: {{template: command, command: [/usr/bin/python3, -c, {script:?}]{image}}}\n---\n"
            ),
        )?;
        let outcome = home.program(["start", name, "--yes", "--label", name])?.run()?.expect_code(137);
        let word = format!("{name} {word}");
        assert!(outcome.stderr.contains(&word), "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn a_bottle_over_its_memory_limit_ends_with_a_message() -> anyhow::Result<()> {
    let take =
        "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(60)";
    ends_with_a_word("memory", "128MiB", take, "used up its memory, 128MiB (`resources.memory`)")
}

#[test]
fn a_bottle_over_its_disk_limit_ends_with_a_message() -> anyhow::Result<()> {
    let take = fill("/opt", 64, 60);
    ends_with_a_word("disk", "32MiB", &take, "used up its disk, 32MiB (`resources.disk`)")
}
