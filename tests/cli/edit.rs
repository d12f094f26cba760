//! Tests manifests that the user writes or edits.

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{run, snapshot, transcript, transcripts};

#[test]
fn init_writes_shipped_manifests_and_keeps_existing_ones() -> Result<()> {
    let mut home = TestHome::new()?;
    home.agent("claude", "---\nbottle: claude\n---\nmine\n")?;
    let text = transcripts(
        &home,
        &[&["init"], &["init"], &["list", "agents"], &["start", "shell", "--dry-run", "-q"]],
    )?;
    assert_eq!(
        std::fs::read_to_string(home.bottle_home().join("agents/claude.md"))?,
        "---\nbottle: claude\n---\nmine\n"
    );
    snapshot!(text);
    Ok(())
}

#[test]
fn a_full_or_read_only_home_leaves_no_partial_manifest() -> Result<()> {
    let home = TestHome::new()?;
    std::fs::remove_dir(home.bottle_home().join("bottles"))?;
    home.write("home/.bottle/bottles", "a file in its way")?;
    snapshot!(transcript(&home, &["init"])?);
    Ok(())
}

/// Returns a home whose editor is this shell script, which gets the path of the edited file.
fn with_editor(script: &str) -> Result<TestHome> {
    let mut home = TestHome::new()?;
    let editor = home.write("home/editor", &format!("#!/bin/sh\n{script}\n"))?;
    home.env("EDITOR", format!("/bin/sh {}", editor.display()));
    Ok(home)
}

fn edit(home: &TestHome, arguments: &[&str]) -> Result<Pty> {
    home.on_terminal(arguments, 24, 100)
}

#[test]
fn edits_a_shipped_manifest_as_a_copy() -> Result<()> {
    let home = with_editor("echo 'More words.' >>\"$1\"")?;
    let mut pty = edit(&home, &["edit", "claude", "--agent"])?;
    pty.wait_for("wrote ~/.bottle/agents/claude.md")?;
    assert_eq!(pty.wait_exit()?, 0);
    let text = std::fs::read_to_string(home.bottle_home().join("agents/claude.md"))?;
    assert!(text.contains("bottle: claude") && text.ends_with("More words.\n"), "{text}");
    Ok(())
}

#[test]
fn an_unchanged_edit_writes_nothing() -> Result<()> {
    let home = with_editor("true")?;
    let mut pty = edit(&home, &["edit", "claude", "--bottle"])?;
    pty.wait_for("nothing was changed")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert!(!home.bottle_home().join("bottles/claude.md").exists());
    Ok(())
}

#[test]
fn reports_an_invalid_edit_before_writing() -> Result<()> {
    let mut home = with_editor("printf -- '---\\negres: {}\\n---\\n' >\"$1\"")?;
    home.bottle("mine", "---\nenv: {A: b}\n---\n")?;
    let file = home.bottle_home().join("bottles/mine.md");
    let mut pty = edit(&home, &["edit", "mine"])?;
    pty.wait_for("did you mean `egress`?")?;
    pty.wait_for("[edit/keep/discard]")?;
    pty.type_keys("e\r")?;
    pty.wait_until("asked again", |screen| screen.matches("[edit/keep/discard]").count() == 2)?;
    pty.type_keys("discard\r")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_eq!(std::fs::read_to_string(&file)?, "---\nenv: {A: b}\n---\n");
    let mut pty = edit(&home, &["edit", "mine"])?;
    pty.wait_for("[edit/keep/discard]")?;
    pty.type_keys("k\r")?;
    pty.wait_for("wrote ~/.bottle/bottles/mine.md")?;
    assert_eq!(pty.wait_exit()?, 0);
    assert_eq!(std::fs::read_to_string(&file)?, "---\negres: {}\n---\n");
    Ok(())
}

#[test]
fn asks_about_new_and_ambiguous_names() -> Result<()> {
    let home = with_editor("sed -i 's/You are .*/Review./' \"$1\"")?;
    let mut pty = edit(&home, &["edit", "claud"])?;
    let screen = pty.wait_for("Create `claud` as what? [agent/bottle]")?;
    assert!(screen.contains("did you mean `claude`?"), "{screen}");
    pty.type_keys("agent\r")?;
    pty.wait_for("wrote ~/.bottle/agents/claud.md")?;
    assert_eq!(pty.wait_exit()?, 0);
    let mut pty = edit(&home, &["edit", "claude"])?;
    pty.wait_for("There is an agent `claude` and a bottle `claude`. Which?")?;
    pty.type_keys("\x1b")?;
    pty.wait_for("nothing was changed")?;
    assert_eq!(pty.wait_exit()?, 130);
    let mut pty = edit(&home, &["edit"])?;
    pty.wait_for("Change which manifest?")?;
    pty.type_keys("claud agent yours")?;
    pty.wait_for("1 of ")?;
    pty.type_keys("\r")?;
    pty.wait_for("nothing was changed")?;
    assert_eq!(pty.wait_exit()?, 0);
    Ok(())
}

#[test]
fn a_failed_or_missing_editor_changes_nothing() -> Result<()> {
    let home = with_editor("exit 3")?;
    let mut pty = edit(&home, &["edit", "claude", "--agent"])?;
    pty.wait_for("the editor failed: exit status: 3; nothing was changed")?;
    assert_eq!(pty.wait_exit()?, 1);
    let mut home = TestHome::new()?;
    home.env("VISUAL", "no-such-editor --wait");
    let mut pty = edit(&home, &["edit", "claude", "--agent"])?;
    pty.wait_for("set EDITOR")?;
    assert_eq!(pty.wait_exit()?, 1);
    assert!(!home.bottle_home().join("agents/claude.md").exists());
    Ok(())
}

#[test]
fn edit_needs_a_terminal() -> Result<()> {
    let home = with_editor("touch opened")?;
    snapshot!(transcript(&home, &["edit", "claude"])?);
    assert!(!home.project().join("opened").exists());
    Ok(())
}

#[test]
fn settings_shows_every_value_and_highlights_changes() -> Result<()> {
    let home = TestHome::new()?;
    home.write("home/.bottle/settings.yml", "docker: {transport: network}\nterminal: {pass: [title]}\n")?;
    snapshot!(transcripts(&home, &[&["settings"], &["settings", "--json"]])?);
    let outcome = run(&home, &["settings", "--json"])?;
    let changed: Vec<_> = outcome
        .json()?
        .as_array()
        .expect("a list")
        .iter()
        .filter(|row| row["changed"] == true)
        .map(|row| row["key"].clone())
        .collect();
    assert_eq!(changed, ["docker.transport", "terminal.pass"]);
    Ok(())
}
