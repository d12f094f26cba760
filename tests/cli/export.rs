//! Tests exports and imports: bottles that move to another home, and archives that are refused.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::scrub::Scrub;

use crate::home::{home, run, snapshot, transcripts};

/// A token that the scanner of the proxy would also block.
const TOKEN: &str = "glpat-Xk3Vw9QzR7tYp2LmNb5c";

/// Returns a home with a running bottle that has a file in its workspace.
fn running(label: &str) -> Result<TestHome> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", label, "-q"])?.expect_code(0);
    home.write("project/note", "remember\n")?;
    let _ = run(&home, &["cp", "note", &format!("{label}:note"), "-q"])?.expect_code(0);
    Ok(home)
}

/// The outputs of commands, without sizes.
fn outputs(home: &TestHome, commands: &[&[&str]]) -> Result<String> {
    let text = transcripts(home, commands)?;
    let mut sizes = Scrub::default();
    sizes.add(r#"\b\d+(\.\d+)? (B|KiB)\b|("bytes": ?)\d+"#, "$3[SIZE]")?;
    Ok(sizes.apply(&text))
}

/// The temporary directories in the home.
fn leftovers(home: &TestHome) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for directory in ["state", "snapshots.fake/two", "keys"] {
        let Ok(entries) = fs::read_dir(home.bottle_home().join(directory)) else { continue };
        for entry in entries {
            found.push(entry?.file_name().into_string().ok().context("a name")?);
        }
    }
    found.retain(|name| name.starts_with('.'));
    if let Ok(entries) = fs::read_dir(home.bottle_home().join("tmp")) {
        for entry in entries {
            found.push(entry?.file_name().into_string().ok().context("a name")?);
        }
    }
    Ok(found)
}

#[test]
fn a_bottle_is_exported_and_imported() -> Result<()> {
    let home = running("one")?;
    snapshot!(outputs(
        &home,
        &[
            &["export", "one", "-o", "one.bottle", "--sign"],
            // The temporary snapshot of the export is removed, so it is not listed.
            &["snapshots"],
            &["export", "one", "-o", "one.bottle"],
            &["export", "one", "-o", "missing/one.bottle"],
            &["export", "one", "-o", "one.bottle", "--force", "--sign", "--json"],
            &["import", "one.bottle", "--label", "two", "--yes"],
            &["import", "one.bottle", "--label", "two", "--yes"],
            &["import", "one.bottle", "--label", "three", "--json"],
            &["list"],
            &["snapshots"],
            &["resume", "two", "--detach", "-q"],
            &["exec", "two", "--", "cat", "note"],
            &["exec", "one", "--", "cat", "note"],
            &["export", "nobody", "-o", "x"],
            &["export", "one@good", "-o", "x"],
        ],
    )?);
    assert_eq!(leftovers(&home)?, [""; 0]);
    assert!(!home.project().join("x").exists());
    Ok(())
}

/// An import starts no agent, so it needs no task.
#[test]
fn a_bottle_whose_command_needs_a_task_is_imported() -> Result<()> {
    let mut home = home()?;
    home.agent("ask", "---\nbottle: ask\n---\n")?;
    home.bottle(
        "ask",
        "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, '{task}']}\n---\n",
    )?;
    let start = ["start", "ask", "--detach", "--label", "one", "-p", "60", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    snapshot!(outputs(
        &home,
        &[
            &["export", "one", "-o", "one.bottle"],
            &["import", "one.bottle", "--label", "two", "--yes"],
            &["resume", "two", "-q"],
            &["resume", "two", "-p", "0", "-q"],
        ],
    )?);
    Ok(())
}

#[test]
fn another_home_shows_who_signed_and_decides_itself() -> Result<()> {
    let from = running("one")?;
    let _ = run(&from, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let archive = from.project().join("one.bottle");
    let exported = run(&from, &["export", "one", "-o", "one.bottle", "--sign", "--json"])?.expect_code(0);
    let exported: serde_json::Value = serde_json::from_str(&exported.stdout)?;
    let key = exported["key"].as_str().context("a key")?;
    let mut to = home()?;
    fs::copy(&archive, to.project().join("one.bottle"))?;
    let mut text = outputs(&to, &[&["import", "one.bottle", "--label", "two"]])?;
    let settings = format!("import: {{known_keys: {{alice: '{key}'}}}}\n");
    fs::write(to.bottle_home().join("settings.yml"), settings)?;
    to.bottle(
        "nap",
        "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, '60']}\n\
        egress: {routes: [{host: api.example.com}]}\n---\n",
    )?;
    text += &outputs(
        &to,
        &[
            &["import", "one.bottle", "--label", "three"],
            &["import", "one.bottle", "--label", "four", "--agent", "hi", "-q"],
            &["import", "one.bottle", "--label", "five", "--agent", "nobody"],
            &["import", "missing.bottle"],
            &["resume", "three", "--dry-run", "-q"],
        ],
    )?;
    // The home does not have the agent of the imported bottle.
    fs::remove_file(to.bottle_home().join("agents/nap.md"))?;
    text += &outputs(&to, &[&["import", "one.bottle", "--label", "five"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_secret_in_the_files_stops_the_export_unless_its_rule_is_accepted() -> Result<()> {
    let home = running("one")?;
    home.write("project/env", &format!("TOKEN={TOKEN}\n"))?;
    let _ = run(&home, &["cp", "env", "one:env", "-q"])?.expect_code(0);
    let text = outputs(
        &home,
        &[
            &["export", "one", "-o", "one.bottle"],
            &["export", "one", "-o", "one.bottle", "--accept", "other"],
            &["export", "one", "-o", "one.bottle", "--accept", "gitlab-personal-token"],
            &["import", "one.bottle", "--label", "two", "-q"],
        ],
    )?;
    ensure!(!text.contains(TOKEN), "{text}");
    snapshot!(text);
    Ok(())
}

#[test]
fn an_archive_passes_through_pipes() -> Result<()> {
    let home = running("one")?;
    let exported = home.program(["export", "one", "-o", "-", "-q"])?.command().output()?;
    ensure!(exported.status.success(), "{exported:?}");
    let mut program = home.program(["import", "-", "--label", "two", "-q"])?;
    let imported = program.input(exported.stdout).run()?.expect_code(0);
    assert_eq!(imported.stdout, "two\n");
    let _ = run(&home, &["resume", "two", "--detach", "-q"])?.expect_code(0);
    assert_eq!(run(&home, &["exec", "two", "--", "cat", "note"])?.expect_code(0).stdout, "remember\n");
    Ok(())
}

#[test]
fn a_damaged_archive_is_refused_and_leaves_nothing() -> Result<()> {
    let home = running("one")?;
    let _ = run(&home, &["export", "one", "-o", "one.bottle", "--sign", "-q"])?.expect_code(0);
    let whole = fs::read(home.project().join("one.bottle"))?;
    let at = whole.windows(12).position(|text| text == b"\"format\": 1,").context("a format")?;
    let newer = [&whole[..at], b"\"format\": 9,", &whole[at + 12..]].concat();
    let mut changed = whole.clone();
    let header = whole.windows(19).position(|text| text == b"bottle/manifest.yml").context("a manifest")?;
    changed[header] ^= 1;
    for (name, bytes) in [
        ("cut", &whole[..700]),
        ("newer", &newer),
        ("changed", &changed),
        ("empty", &[]),
        ("text", b"hello"),
        ("one.bottle.gz", b"\x1f\x8b\x08\0\0\0\0\0"),
    ] {
        fs::write(home.project().join(name), bytes)?;
    }
    let text = outputs(
        &home,
        &[
            &["import", "cut", "--label", "two"],
            &["import", "newer", "--label", "two"],
            &["import", "changed", "--label", "two"],
            &["import", "empty", "--label", "two"],
            &["import", "text", "--label", "two"],
            &["import", "one.bottle.gz", "--label", "two"],
            &["import", "/", "--label", "two"],
        ],
    )?;
    snapshot!(text);
    assert_eq!(leftovers(&home)?, [""; 0]);
    assert!(!home.bottle_home().join("state/two").exists());
    Ok(())
}

/// A hidden file that an unfinished export wrote, and its size.
fn unfinished(home: &TestHome) -> Option<(PathBuf, u64)> {
    let entries = fs::read_dir(home.project()).ok()?.filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".bottle-unfinished-"))
        .find_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
}

#[test]
fn a_cleanup_finds_the_file_of_a_killed_export() -> Result<()> {
    let home = running("one")?;
    // The bottle has a file that is large enough to interrupt the writing of the archive.
    let noise: Vec<u8> =
        (0..64_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(home.project().join("noise"), noise)?;
    let _ = run(&home, &["cp", "noise", "one:noise", "-q"])?.expect_code(0);
    let mut left = None;
    for _ in 0..5 {
        let mut export = home.program(["export", "one", "-o", "one.bottle", "-q"])?.command().spawn()?;
        while export.try_wait()?.is_none() {
            if let Some((path, 1..)) = unfinished(&home) {
                export.kill()?;
                left = Some(path);
            }
        }
        match &left {
            Some(path) if path.exists() => break,
            // The archive was complete before the program was killed.
            _ => fs::remove_file(home.project().join("one.bottle"))?,
        }
    }
    let left = left.context("an interrupted export")?;
    let shown = run(&home, &["cleanup", "--dry-run"])?.expect_code(0).stdout;
    ensure!(shown.contains(&*left.to_string_lossy()), "{shown}");
    let _ = run(&home, &["cleanup", "--yes", "-q"])?.expect_code(0);
    ensure!(!left.exists() && unfinished(&home).is_none(), "{left:?}");
    assert_eq!(leftovers(&home)?, [""; 0]);
    ensure!(!home.project().join("one.bottle").exists());
    Ok(())
}

#[test]
fn a_failed_or_killed_import_is_undone() -> Result<()> {
    let home = running("one")?;
    let _ = run(&home, &["export", "one", "-o", "one.bottle", "-q"])?.expect_code(0);
    for step in ["export", "import", "import:kill", "importing:kill"] {
        let arguments: &[&str] = match step {
            "export" => &["export", "one", "-o", "again", "-q"],
            _ => &["import", "one.bottle", "--label", "two", "-q"],
        };
        let mut program = home.program(arguments.iter().copied())?;
        let failed = program.env("BOTTLE_FAKE_FAIL", step).run()?;
        ensure!(failed.code != 0, "{step}: {failed:?}");
        if step.ends_with("kill") {
            let _ = run(&home, &["cleanup", "--yes", "-q"])?.expect_code(0);
        }
        assert!(!home.bottle_home().join("state/two").exists(), "{step}");
        assert!(!home.bottle_home().join("snapshots.fake/two").exists(), "{step}");
        assert!(!home.project().join("again").exists(), "{step}");
        assert_eq!(leftovers(&home)?, [""; 0], "{step}");
    }
    let _ = run(&home, &["import", "one.bottle", "--label", "two", "-q"])?.expect_code(0);
    // The snapshot is removed without a `bottle` command.
    fs::remove_dir_all(home.bottle_home().join("snapshots.fake/two"))?;
    let resumed = run(&home, &["resume", "two", "--detach"])?.expect_code(0);
    ensure!(resumed.stderr.contains("its snapshot was deleted, so it is built anew"), "{}", resumed.stderr);
    Ok(())
}
