//! A failed setup reports one cause and leaves no process running.

use std::process::{Command, Stdio};

use bottle_backend::{BackendErrorKind, Exposed, Prepared, ProgressSink};
use bottle_plan::ImageSource;
use bottle_test_support::program::Program;
use bottle_test_support::skip;

use crate::fixture::{Fixture, every_backend, every_isolating_backend, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_setup_names_its_step_and_leaves_no_process() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.planned("broken");
        fixture.backend.make_network(&bottle.launch()).await.expect("network");
        if !fixture.shows_the_host() {
            let mut prepared = bottle.prepared.clone();
            let (kind, said) =
                if fixture.is_in_image() { ("", "was removed") } else { ("sha256:", "No such image") };
            let nowhere = format!("{kind}{}", "0".repeat(64));
            prepared.inside.as_mut().expect("images").image.clone_from(&nowhere);
            let error = fixture.backend.start_guest(&bottle.launch(), &prepared).await.expect_err("fails");
            assert!(error.one_line().contains(said) && error.hint.is_some(), "{error}");
            bottle.remove().await;
            assert_eq!(bottle.found().await, [], "{}", fixture.name());
            continue;
        }
        // The second exposed path cannot be mounted, so the new process fails late in its setup.
        let inner = fixture.host.user_home.join("file/inner");
        std::fs::create_dir_all(inner.parent().expect("parent")).expect("made");
        std::fs::write(&inner, "x").expect("written");
        let exposed = |path: &std::path::Path| Exposed { path: path.to_owned(), why: "a test".to_owned() };
        let exposed = vec![exposed(&inner), exposed(std::path::Path::new("/proc/self/../stat"))];
        let prepared = Prepared { exposed, ..Prepared::default() };
        let error = fixture.backend.start_guest(&bottle.launch(), &prepared).await.expect_err("fails");
        assert!(error.one_line().contains("/proc/self/../stat"), "{}: {error}", fixture.name());
        let left = bottle.found().await;
        assert!(
            left.iter().all(|resource| !resource.kind.ends_with("process")),
            "{}: {left:?}",
            fixture.name()
        );
        bottle.remove().await;
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_to_a_missing_bottle_names_it() {
    for fixture in every_backend().await {
        let bottle = fixture.planned("absent");
        let error = fixture.backend.connect_guest(bottle.slug()).await.err().expect("nothing is there");
        assert!(error.one_line().contains("absent"), "{}: {error}", fixture.name());
        let error = fixture.backend.connect_bundle(bottle.slug()).await.err().expect("nothing is there");
        assert!(error.one_line().contains("absent"), "{}: {error}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_guest_takes_its_processes_with_it() {
    for fixture in every_backend().await {
        if fixture.is_machine() {
            skip::aloud(fixture.name(), &"the processes of a virtual machine are not visible on the host");
            continue;
        }
        let bottle = fixture.bottle("killed").await;
        let channel = bottle.provisioned().await;
        let program = tokio::spawn(async move { run(&channel, &["sleep", "61.5"]).await.map(drop) });
        while !is_sleeping() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let processes: Vec<_> =
            bottle.resources.all().into_iter().filter(|resource| resource.kind == "guest-process").collect();
        assert_eq!(processes.len(), 1, "{}", fixture.name());
        fixture.backend.remove(&processes).await.expect("killed");
        program.abort();
        let mut patience = 100;
        while is_sleeping() && patience > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            patience -= 1;
        }
        assert!(!is_sleeping(), "{}", fixture.name());
        bottle.remove().await;
    }
}

/// Whether the program of the previous test runs as this user. A unique argument identifies the program.
fn is_sleeping() -> bool {
    let own = rustix::process::getuid().as_raw();
    std::fs::read_dir("/proc").expect("proc").filter_map(Result::ok).any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.ends_with(b"sleep\x0061.5\0") && belongs_to(&entry.path(), own)
    })
}

/// Whether the process may belong to this run of the suite: it has our user id or, if we are root, any user id except
/// that of the run as a non-root user (64242). A bottle that root starts runs as another user.
fn belongs_to(process: &std::path::Path, own: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(process).is_ok_and(|found| own == 0 && found.uid() != 64_242 || found.uid() == own)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_backend_fails_at_the_requested_step() {
    for step in ["prepare", "make_network", "start_bundle", "start_guest", "connect_guest", "remove"] {
        let fixture = Fixture::new("fake", &[("BOTTLE_FAKE_FAIL", step)]);
        let bottle = fixture.planned("struck");
        let backend = &fixture.backend;
        let mut struck = Vec::new();
        struck.push((
            "prepare",
            backend.prepare(&bottle.plan, &Default::default(), &ProgressSink::discard()).await.is_err(),
        ));
        struck.push(("make_network", backend.make_network(&bottle.launch()).await.is_err()));
        if step != "make_network" {
            let guest = backend.start_guest(&bottle.launch(), &Prepared::default()).await;
            struck.push(("start_guest", guest.is_err()));
        }
        if !["make_network", "start_guest"].contains(&step) {
            struck.push(("connect_guest", backend.connect_guest(bottle.slug()).await.is_err()));
        }
        struck.push(("remove", backend.remove(&bottle.resources.all()).await.is_err()));
        for (name, failed) in struck {
            assert_eq!(failed, name == step, "{name} with {step}");
        }
        if step == "remove" {
            let healthy = bottle_lib::registry::by_name(
                &bottle_host::Host { env: Default::default(), ..fixture.host.clone() },
                "fake",
            );
            healthy.expect("fake").remove(&bottle.resources.all()).await.expect("removed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_unsupported_plan_before_creating_anything() {
    for fixture in every_backend().await {
        let mut bottle = fixture.planned("misfit");
        match fixture.name() {
            "fake" => bottle.plan.agent.argv = vec!["/bin/sh".to_owned()],
            "linux" | "smolvm" => bottle.plan.image = ImageSource::Reference("team/agent:1".to_owned()),
            _ => bottle.plan.resources.nested = true,
        }
        if fixture.name() == "linux" {
            let mut renewed = fixture.planned("renewed");
            renewed.plan.renewal.pull = true;
            let error = fixture.backend.supports(&renewed.plan).expect_err("refused");
            assert!(error.message.contains("`--pull`"), "{error}");
        }
        let error = fixture.backend.supports(&bottle.plan).expect_err("refused");
        assert_eq!(error.kind, BackendErrorKind::Unsupported, "{}", fixture.name());
        assert!(error.hint.is_some(), "{}", fixture.name());
    }
}

/// Simulates a machine without user namespaces.
#[test]
fn a_start_without_user_namespaces_reports_it_and_creates_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let home = directory.path().join("home");
    let program = Program::bottle().expect("built");
    let bottle = |arguments: &[&str]| {
        let switched_off = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=1000", "--map-group=1000", "--keep-caps"]);
        command.args(["/bin/sh", "-c", switched_off, "sh"]).arg(program.path()).args(arguments);
        command
            .env("BOTTLE_HOME", &home)
            .env("HOME", directory.path())
            .env("XDG_RUNTIME_DIR", directory.path());
        command.env_remove("BOTTLE_BACKEND").stdin(Stdio::null());
        command.output().expect("unshare")
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let version = bottle(&["--version"]);
    if !version.status.success() {
        skip::aloud(
            "no user namespaces",
            &format!("there are none to switch off: {}", said(&version.stderr)),
        );
        return;
    }
    let start = bottle(&["start", "probe", "--yes", "--backend", "linux"]);
    assert_eq!(start.status.code(), Some(4), "{}", said(&start.stderr));
    let hint = "hint: sudo sysctl -w user.max_user_namespaces=";
    assert!(said(&start.stderr).contains(hint), "{}", said(&start.stderr));
    let doctor = said(&bottle(&["doctor"]).stdout);
    assert!(doctor.contains("user namespaces are disabled (user.max_user_namespaces is 0)"), "{doctor}");
    assert_eq!(doctor.matches("fix: sudo sysctl -w user.max_user_namespaces=").count(), 1, "{doctor}");
    let left = std::fs::read_dir(home.join("state")).into_iter().flatten().count();
    assert_eq!(left, 0, "nothing is half made");
}
