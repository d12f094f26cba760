//! Kills commits, resumes and cleanups. The earlier state must stay usable, and cleanup must find the leftovers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::left::{Left, process_with};
use crate::{clean_up, home, kill_keeper, status, wait_until};

fn run(home: &TestHome, arguments: &[&str]) -> Outcome {
    home.program(arguments.iter().copied()).expect("program").run().expect("run")
}

fn done(home: &TestHome, arguments: &[&str]) -> Outcome {
    let outcome = run(home, arguments);
    assert_eq!(outcome.code, 0, "{arguments:?} after {:?}: {}", outcome.took, outcome.stderr);
    outcome
}

/// Runs a command with a failure injected into its own process and into any keeper that it starts.
fn struck(home: &TestHome, strike: &str, arguments: &[&str]) -> Outcome {
    let mut program = home.program(arguments.iter().copied()).expect("program");
    program.env("BOTTLE_FAKE_FAIL", strike).run().expect("run")
}

fn write(home: &TestHome, text: &str) {
    home.write("project/note", text).expect("written");
    done(home, &["cp", "note", "one:note"]);
    done(home, &["cp", "note", "one:other"]);
}

/// A home with a detached bottle whose snapshot contains `first` and whose files now contain `second`.
fn committed(backend: &str) -> TestHome {
    let mut home = home();
    home.without_cleanup();
    let patient =
        crate::FAKE.replace("'60'", "'600'").replace("backend: fake", &format!("backend: {backend}"));
    home.bottle(backend, &patient).expect("bottle");
    done(&home, &["start", "sleeper", "--bottle", backend, "--label", "one", "--detach", "--yes", "-q"]);
    write(&home, "first");
    done(&home, &["commit", "one", "-q"]);
    write(&home, "second");
    home
}

fn snapshots_of(home: &TestHome, backend: &str) -> Vec<PathBuf> {
    let directory = if backend == "fake" { "snapshots.fake" } else { "snapshots" };
    let own = home.bottle_home().join(directory).join("one");
    let entries = std::fs::read_dir(own).into_iter().flatten();
    entries.map(|entry| entry.expect("entry").path()).collect()
}

fn is_whole(path: &Path) -> bool {
    !path.file_name().expect("a name").to_string_lossy().starts_with('.')
}

/// Resumes from the snapshot and reads both files. Both files must be from the same moment.
fn read_back(home: &TestHome, when: &str) -> String {
    let resumed = run(home, &["resume", "one", "--snapshot", "--yes", "--detach", "-q"]);
    assert_eq!(resumed.code, 0, "{when}: {}", resumed.stderr);
    let read = done(home, &["exec", "one", "--", "cat", "note"]).stdout;
    assert_eq!(done(home, &["exec", "one", "--", "cat", "other"]).stdout, read, "{when}");
    done(home, &["stop", "one", "--time", "0"]);
    read
}

/// Asserts that after a cleanup only one complete snapshot and the state that names it are left, and no process runs.
fn only_the_snapshot_is_left(home: &TestHome, backend: &str, when: &str) {
    wait_until(&format!("nothing but the snapshot is left {when}"), || {
        clean_up(home);
        let all = snapshots_of(home, backend);
        all.len() == 1 && all.iter().all(|path| is_whole(path)) && Left::of(home).is_only_state_of("one")
    });
}

#[test]
fn a_commit_killed_at_any_step_leaves_a_complete_snapshot_and_the_bottle() {
    for step in ["make_snapshot", "snapshot_copying", "snapshot_made", "remove_snapshot"] {
        let home = committed("fake");
        // The keeper that the next command starts adopts the bottle and inherits the failure from that command's
        // environment.
        kill_keeper(&home, "one");
        let killed = struck(&home, &format!("{step}:kill"), &["commit", "one", "-q"]);
        assert_ne!(killed.code, 0, "{step}: {}", killed.stderr);
        // The keeper that the bottle's watcher started inherited the failure too.
        kill_keeper(&home, "one");
        let whole: Vec<_> = snapshots_of(&home, "fake").into_iter().filter(|path| is_whole(path)).collect();
        assert!(!whole.is_empty(), "{step}: {:?}", snapshots_of(&home, "fake"));

        // A cleanup does not change the running bottle and its snapshot, and the next command works.
        clean_up(&home);
        assert_eq!(done(&home, &["exec", "one", "--", "cat", "note"]).stdout, "second", "{step}");
        done(&home, &["stop", "one", "--time", "0"]);
        wait_until("it is kept", || status(&home, "one").as_deref() == Some("kept"));
        clean_up(&home);
        assert_eq!(snapshots_of(&home, "fake").len(), 1, "{step}: {:?}", snapshots_of(&home, "fake"));
        let read = read_back(&home, step);
        // At the step `remove_snapshot`, the new snapshot is already recorded and the old one not yet removed.
        let recorded = step == "remove_snapshot";
        assert_eq!(read, if recorded { "second" } else { "first" }, "{step}");
        only_the_snapshot_is_left(&home, "fake", step);
    }
}

#[test]
fn a_resume_killed_at_any_step_can_be_repeated() {
    let steps = ["prepare", "make_network", "start_bundle", "start_guest", "restoring", "connect_guest"];
    for step in steps {
        let home = committed("fake");
        done(&home, &["stop", "one", "--time", "0"]);
        // The first resume uses the kept files. A launch that is killed must not lose any of these files.
        if step != "restoring" {
            let killed =
                struck(&home, &format!("{step}:kill"), &["resume", "one", "--detach", "--yes", "-q"]);
            assert_ne!(killed.code, 0, "{step}: {}", killed.stderr);
            wait_until("its keeper is gone", || process_with(&home, "__keeper").is_none());
            wait_until("it is kept", || {
                clean_up(&home);
                status(&home, "one").as_deref() == Some("kept")
            });
            done(&home, &["resume", "one", "--detach", "--yes", "-q"]);
            assert_eq!(done(&home, &["exec", "one", "--", "cat", "note"]).stdout, "second", "{step}");
            done(&home, &["stop", "one", "--time", "0"]);
        }
        let arguments = ["resume", "one", "--snapshot", "--detach", "--yes", "-q"];
        let killed = struck(&home, &format!("{step}:kill"), &arguments);
        assert_ne!(killed.code, 0, "{step}: {}", killed.stderr);
        wait_until("its keeper is gone", || process_with(&home, "__keeper").is_none());
        wait_until("it is kept", || {
            clean_up(&home);
            status(&home, "one").as_deref() == Some("kept")
        });
        assert_eq!(read_back(&home, step), "first", "{step}");
        only_the_snapshot_is_left(&home, "fake", step);
    }
}

#[test]
fn a_killed_fork_leaves_no_snapshot_and_no_work_counts_as_saved() {
    let home = committed("fake");
    let kill_fork = || {
        let killed = struck(&home, "prepare:kill", &["fork", "one", "--label", "two", "--yes", "-q"]);
        assert_ne!(killed.code, 0, "{}", killed.stderr);
        assert_eq!(snapshots_of(&home, "fake").len(), 2, "its snapshot is left");
    };
    // The end of the bottle removes the snapshot of the killed fork. Work that only this snapshot contains is unsaved.
    kill_fork();
    done(&home, &["stop", "one", "--time", "0"]);
    wait_until("it is kept", || status(&home, "one").as_deref() == Some("kept"));
    assert_eq!(snapshots_of(&home, "fake").len(), 1);
    done(&home, &["resume", "one", "--detach", "--yes", "-q"]);
    assert_eq!(done(&home, &["exec", "one", "--", "cat", "note"]).stdout, "second");
    // The next commit also removes the snapshot of a killed fork.
    kill_fork();
    done(&home, &["commit", "one", "-q"]);
    assert_eq!(snapshots_of(&home, "fake").len(), 1);
    // A cleanup of a kept bottle also removes the snapshot of a killed fork.
    done(&home, &["stop", "one", "--time", "0"]);
    done(&home, &["resume", "one", "--detach", "--yes", "-q"]);
    done(&home, &["cp", "note", "one:more"]);
    done(&home, &["stop", "one", "--time", "0"]);
    wait_until("it is kept", || status(&home, "one").as_deref() == Some("kept"));
    kill_fork();
    clean_up(&home);
    assert_eq!(snapshots_of(&home, "fake").len(), 1);
    assert_eq!(read_back(&home, "fork"), "second");
    only_the_snapshot_is_left(&home, "fake", "fork");
}

#[test]
fn a_cleanup_killed_at_any_step_is_finished_by_the_next() {
    for step in ["remove", "snapshots", "remove_snapshot"] {
        let home = committed("fake");
        // An orphaned bottle has a snapshot that its state names, and another that no state names.
        let own = snapshots_of(&home, "fake").pop().expect("a snapshot");
        done(&home, &["stop", "one", "--time", "0"]);
        let unnamed = own.with_file_name("20200101-000000-000000");
        std::fs::create_dir_all(unnamed.join("home")).expect("made");
        std::fs::create_dir_all(own.with_file_name(".new-20200101-000000-000001")).expect("made");
        let killed = struck(&home, &format!("{step}:kill"), &["cleanup", "--yes"]);
        assert_ne!(killed.code, 0, "{step}");
        clean_up(&home);
        assert_eq!(snapshots_of(&home, "fake"), [own], "{step}");
        assert_eq!(read_back(&home, step), "first", "{step}");
        only_the_snapshot_is_left(&home, "fake", step);
    }
}

#[test]
fn a_keeper_killed_at_random_moments_of_a_commit() {
    if !home().runs("a_keeper_killed_at_random_moments_of_a_commit", "linux").expect("doctor") {
        return;
    }
    let home = committed("linux");
    let many = "cd; for i in 0 1 2 3 4 5 6 7 8 9; do mkdir d$i; j=0; \
        while [ $j -lt 100 ]; do echo $i.$j >d$i/$j; j=$((j+1)); done; done";
    done(&home, &["exec", "one", "--", "/bin/sh", "-c", many]);
    for round in 0..12_u64 {
        let again = "for f in ~/d*/1*; do echo again >$f; done";
        done(&home, &["exec", "one", "--", "/bin/sh", "-c", again]);
        let mut client = home.program(["commit", "one", "-q"]).expect("program").command();
        let mut client = client.stderr(std::process::Stdio::null()).spawn().expect("commit");
        std::thread::sleep(Duration::from_micros(2_000 + round * 9_100));
        if let Some(keeper) = process_with(&home, "__keeper") {
            keeper.kill();
        }
        client.wait().expect("the client's end");
        wait_until("the kernel has closed its files", || {
            matches!(status(&home, "one").as_deref(), Some("unkept" | "running"))
        });
        clean_up(&home);
        let whole = snapshots_of(&home, "linux").into_iter().filter(|path| is_whole(path)).count();
        assert!(whole >= 1, "round {round}");
    }
    done(&home, &["stop", "one", "--time", "0"]);
    // The keeper may still remove the files of the bottle.
    only_the_snapshot_is_left(&home, "linux", "after the stop");
    assert!(["first", "second"].contains(&read_back(&home, "unchosen moments").as_str()));
    only_the_snapshot_is_left(&home, "linux", "after unchosen moments");
}
