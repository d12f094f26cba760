//! Tests a `$BOTTLE_HOME` on an unusual disk: a network share, or a disk that is read-only, full, or supports
//! no locks or sockets.
//!
//! A seccomp filter makes the system calls of the program under test fail as they do on these disks.

use anyhow::{Context, Result};
use bottle_harden::seccomp_filter::Filter;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Program;
use bottle_test_support::skip;
use nix::libc;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompRule};

use crate::home::{bottle, home, run, snapshot, transcript, transcripts};

/// Runs `test` on a thread to which `filter` applies.
fn with<T: Send>(filter: &Filter, test: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let tested = scope.spawn(|| {
            // The filter applies to the thread and its child processes.
            filter.apply()?;
            test()
        });
        tested.join().map_err(|_| anyhow::anyhow!("the test panicked"))?
    })
}

/// Returns a rule that matches a call in which argument number `argument` has this bit.
fn bit(argument: u8, bit: u64) -> Result<SeccompRule> {
    Ok(SeccompRule::new(vec![Condition::new(argument, Len::Dword, Op::MaskedEq(bit), bit)?])?)
}

/// Returns a filter that imitates NFS, 9p or the shared directory of a virtual machine: no renames with flags,
/// links, cloned files or extended attributes.
fn on_a_network() -> Result<Filter> {
    const FICLONE: u64 = 0x4004_9409;
    let mut filter = Filter::passing();
    let flags = [1, 2, 4].map(|flag| bit(4, flag));
    filter.refuse_when(libc::SYS_renameat2, flags.into_iter().collect::<Result<_>>()?, libc::EINVAL);
    let clone = SeccompRule::new(vec![Condition::new(1, Len::Dword, Op::Eq, FICLONE)?])?;
    filter.refuse_when(libc::SYS_ioctl, vec![clone], libc::EOPNOTSUPP);
    filter.refuse(&[libc::SYS_link, libc::SYS_linkat], libc::EPERM);
    filter.refuse(&[libc::SYS_setxattr, libc::SYS_fsetxattr, libc::SYS_copy_file_range], libc::EOPNOTSUPP);
    Ok(filter)
}

/// Returns a home in which bottle sockets are on the same disk as `$BOTTLE_HOME`.
fn sockets_at_home() -> Result<TestHome> {
    let mut home = home()?;
    home.env("XDG_RUNTIME_DIR", "");
    Ok(home)
}

#[test]
fn a_bottles_life_on_a_network_disk_leaves_nothing() -> Result<()> {
    let mut home = sockets_at_home()?;
    home.without_cleanup();
    let text = with(&on_a_network()?, || {
        transcripts(
            &home,
            &[
                &["start", "hi", "-q"],
                &["start", "nap", "--detach", "--label", "one", "-q"],
                &["start", "nap", "--detach", "--label", "one", "-q"],
                &["exec", "one", "--", "echo", "there"],
                &["commit", "one", "-q"],
                &["commit", "one", "-q"],
                &["stop", "one", "--time", "0"],
                &["resume", "one", "--detach", "--yes", "-q"],
                &["stop", "one", "--time", "0"],
                &["snapshots", "rm", "one"],
                &["list"],
                &["cleanup"],
            ],
        )
    })?;
    assert_eq!(std::fs::read_dir(home.bottle_home().join("state"))?.count(), 0);
    snapshot!(text);
    Ok(())
}

#[test]
fn an_isolated_bottle_on_a_network_disk_resumes() -> Result<()> {
    let test = "an_isolated_bottle_on_a_network_disk_resumes";
    let mut home = sockets_at_home()?;
    home.bottle("lives", &bottle("[sleep, \"600\"]").replace("backend: fake", "backend: linux"))?;
    home.agent("lives", "---\nbottle: lives\n---\n")?.without_cleanup();
    let run = |arguments: &[&str]| home.program(arguments.iter().copied())?.run();
    with(&on_a_network()?, || {
        if !home.runs(test, "linux")? {
            return Ok(());
        }
        let made = "mkdir -p a/b/c; echo kept > a/b/c/file; ln -s file a/b/c/link";
        for (arguments, says) in [
            (&["start", "lives", "--detach", "--label", "one", "--yes", "-q"][..], "one"),
            (&["exec", "one", "--", "/bin/sh", "-c", made], ""),
            (&["commit", "one", "-q"], ""),
            (&["commit", "one", "-q"], ""),
            (&["stop", "one", "--time", "0", "-q"], ""),
            (&["resume", "one", "--detach", "--yes", "-q"], "one"),
            (&["exec", "one", "--", "/bin/cat", "a/b/c/link"], "kept"),
            (&["stop", "one", "--time", "0", "-q"], ""),
            (&["snapshots", "rm", "one"], ""),
            (&["cleanup", "--yes"], ""),
        ] {
            let outcome = run(arguments)?.expect_code(0);
            assert!(outcome.stdout.contains(says), "{arguments:?}: {}", outcome.transcript());
        }
        Ok(())
    })
}

#[test]
fn reports_a_disk_without_locks_or_sockets() -> Result<()> {
    let mut text = String::new();
    for (what, call, errno) in [
        ("no locks", libc::SYS_flock, libc::ENOLCK),
        ("no locks at all", libc::SYS_flock, libc::EOPNOTSUPP),
        ("no sockets", libc::SYS_bind, libc::EPERM),
        ("no guard", libc::SYS_listen, libc::EPERM),
    ] {
        let home = sockets_at_home()?;
        let mut filter = Filter::passing();
        filter.refuse(&[call], errno);
        let said = with(&filter, || transcript(&home, &["start", "hi", "--label", "one", "-q"]))?;
        text += &format!("{what}: {said}\n");
        let state = home.bottle_home().join("state");
        let left = std::fs::read_dir(state).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{what}: {text}");
    }
    snapshot!(text);
    Ok(())
}

/// A script with commands that a user may try while `$BOTTLE_HOME` is not writable. The script checks that these
/// commands change no file.
const UNWRITABLE: &str = r#"
said() { echo "\$ bottle $*"; "$BOTTLE" "$@"; echo "exit $?"; echo; }
exec 2>&1
before=$(cd "$BOTTLE_HOME" && find . | sort | md5sum)
said start hi --label one -q
said start nap --detach --label one -q
said init
said list
said list active --json
said cleanup --yes
said start hi --dry-run -q >/dev/null
test "$before" = "$(cd "$BOTTLE_HOME" && find . | sort | md5sum)" && echo "nothing changed"
"#;

/// A shell script that may mount a disk at `$DISK`, and runs `$BOTTLE` with this home. Returns `None` if this user
/// cannot mount.
fn mounting(test: &str, home: &TestHome, lines: &str) -> Result<Option<Program>> {
    if !rustix::process::getuid().is_root() {
        skip::aloud(test, &"only root mounts a disk");
        return Ok(None);
    }
    let place = home.outside("disk");
    std::fs::create_dir(&place)?;
    let mut script = Program::at("/usr/bin/unshare".as_ref());
    script.arguments(["--mount", "--propagation", "private", "/bin/sh", "-c", lines]);
    script.env("DISK", &place).env("BOTTLE_HOME", home.bottle_home()).env("HOME", home.home());
    script.env("BOTTLE", Program::bottle()?.path()).env("XDG_RUNTIME_DIR", home.runtime());
    script.directory(home.project());
    Ok(Some(script))
}

/// Runs the script with a disk as `$BOTTLE_HOME`. The shell commands in `disk` mount this disk.
fn on_a_disk(test: &str, disk: &str) -> Result<Option<String>> {
    let home = home()?;
    let place = home.outside("disk");
    let lines = format!("{disk}\n{UNWRITABLE}");
    let Some(mut script) = mounting(test, &home, &lines)? else { return Ok(None) };
    script.env("BOTTLE_HOME", place.join("home")).env("MANIFESTS", home.bottle_home());
    let outcome = script.run()?;
    let said = outcome.stdout.replace(&place.join("home").display().to_string(), "[BOTTLE_HOME]");
    Ok(Some(home.scrub()?.apply(&said)))
}

const COPIED: &str = r#"mkdir "$BOTTLE_HOME" && cp -r "$MANIFESTS/." "$BOTTLE_HOME" || exit 99"#;

#[test]
fn a_read_only_home_is_reported_and_can_be_read() -> Result<()> {
    let disk = format!(
        "mount -t tmpfs -o mode=755 none \"$DISK\" || exit 99\n{COPIED}\nmount -o remount,ro \"$DISK\" || exit 99"
    );
    let Some(text) = on_a_disk("a_read_only_home_is_reported_and_can_be_read", &disk)? else {
        return Ok(());
    };
    snapshot!(text);
    Ok(())
}

#[test]
fn a_full_home_is_reported_and_leaves_no_partial_files() -> Result<()> {
    let disk = format!(
        "mount -t tmpfs -o size=256k,mode=755 none \"$DISK\" || exit 99\n{COPIED}\n\
         head -c 1000000 /dev/zero >\"$DISK/fill\" 2>/dev/null\nmkdir \"$BOTTLE_HOME/state\""
    );
    let Some(text) = on_a_disk("a_full_home_is_reported_and_leaves_no_partial_files", &disk)? else {
        return Ok(());
    };
    snapshot!(text);
    Ok(())
}

#[test]
fn an_export_to_a_full_disk_names_its_file_and_leaves_nothing() -> Result<()> {
    let home = home()?;
    let name = "an_export_to_a_full_disk_names_its_file_and_leaves_nothing";
    let lines = "mount -t tmpfs -o size=64k none \"$DISK\" || exit 99\n\
                 \"$BOTTLE\" export one -o \"$DISK/one.bottle\" 2>&1; echo \"exit $?\"; ls -A \"$DISK\"";
    let Some(script) = mounting(name, &home, lines)? else { return Ok(()) };
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let noise: Vec<u8> =
        (0..1_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(home.project().join("noise"), noise)?;
    let _ = run(&home, &["cp", "noise", "one:noise", "-q"])?.expect_code(0);
    let outcome = script.run()?;
    let said = outcome.stdout.replace(&home.outside("disk").display().to_string(), "[DISK]");
    snapshot!(home.scrub()?.apply(&said));
    Ok(())
}

#[test]
fn a_network_home_is_not_mistaken_for_another() -> Result<()> {
    // On any disk, the error for a slug that is in use names the cause.
    let home = sockets_at_home()?;
    home.write("home/.bottle/state/mine", "a user's file")?;
    let said = with(&on_a_network()?, || transcript(&home, &["start", "hi", "--label", "mine", "-q"]))?;
    assert!(said.contains("mine is taken"), "{said}");
    let path = home.bottle_home().join("state/mine");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    assert_eq!(text, "a user's file");
    Ok(())
}
