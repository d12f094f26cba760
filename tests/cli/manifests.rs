//! Tests invalid manifests: the error has file, line, column and a hint, the exit code is 3, and no bottle is
//! started.

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript, transcripts};

/// The names and contents of invalid bottle manifests.
const BROKEN: [(&str, &str); 12] = [
    ("no-frontmatter", "just words\n"),
    ("no-end", "---\nenv: {}\n"),
    ("broken-yaml", "---\nenv: {A: [1\n---\n"),
    ("twice", "---\nenv: {A: a}\nenv: {B: b}\n---\n"),
    ("unknown-key", "---\negres: {}\n---\n"),
    ("wrong-type", "---\nenv: [A, B]\n---\n"),
    ("tab", "---\nenv:\n\tA: b\n---\n"),
    ("itself", "---\nextends: itself\n---\n"),
    ("cycle-a", "---\nextends: cycle-b\n---\n"),
    ("missing-parent", "---\nextends: nowhere\n---\n"),
    ("bad-route", "---\negress: {routes: [{host: 'http://example.com/'}]}\n---\n"),
    ("budget", "---\nbudget: 5\n---\n"),
];

fn broken() -> Result<TestHome> {
    let mut home = home()?;
    for (name, text) in BROKEN {
        home.bottle(name, text)?;
    }
    home.bottle("cycle-b", "---\nextends: cycle-a\n---\n")?;
    Ok(home)
}

#[test]
fn reports_each_bad_manifest_with_its_position_and_a_fix() -> Result<()> {
    let home = broken()?;
    let mut text = String::new();
    for (name, _) in BROKEN {
        text += &transcript(&home, &["start", "hi", "--bottle", name])?;
        text += "\n";
    }
    assert!(!home.bottle_home().join("state").exists());
    snapshot!(text);
    Ok(())
}

#[test]
fn a_broken_manifest_hides_no_other() -> Result<()> {
    let home = broken()?;
    snapshot!(transcripts(&home, &[&["list", "bottles"], &["start", "hi", "--dry-run"]])?);
    Ok(())
}

#[test]
fn refuses_a_yaml_bomb_and_a_giant_file_at_once() -> Result<()> {
    let mut home = home()?;
    let mut bomb = "---\na: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, of) in ["b", "c", "d", "e", "f", "g", "h"].iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        bomb += &format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 9].join(","));
    }
    home.bottle("bomb", &format!("{bomb}---\n"))?;
    home.bottle("giant", &format!("---\nenv: {{}}\n---\n{}", "x".repeat(2 << 20)))?;
    for name in ["bomb", "giant"] {
        let outcome = run(&home, &["start", "hi", "--bottle", name])?.expect_code(3);
        assert!(outcome.took.as_secs() < 5, "{name} took {:?}", outcome.took);
    }
    snapshot!(transcripts(
        &home,
        &[&["info", "hi", "--bottle", "bomb"], &["info", "hi", "--bottle", "giant"]]
    )?);
    Ok(())
}

#[test]
fn refuses_a_path_outside_the_directory() -> Result<()> {
    let mut home = home()?;
    home.agent("skilled", "---\nbottle: hi\nskills: [stray]\n---\n")?;
    home.agent("climber", "---\nbottle: hi\nskills: ['../../etc']\n---\n")?;
    home.agent("absent", "---\nbottle: hi\nskills: [nowhere]\n---\n")?;
    home.write("home/.bottle/skills/stray/SKILL.md", "words\n")?;
    std::os::unix::fs::symlink("/etc/passwd", home.bottle_home().join("skills/stray/passwd"))?;
    std::os::unix::fs::symlink("/etc/passwd", home.bottle_home().join("bottles/link.md"))?;
    snapshot!(transcripts(
        &home,
        &[
            &["start", "skilled"],
            &["start", "climber"],
            &["start", "absent"],
            &["start", "hi", "--bottle", "link"]
        ],
    )?);
    Ok(())
}

#[test]
fn a_projects_agent_only_suggests_a_bottle() -> Result<()> {
    let home = home()?;
    home.write("project/.bottle/agents/hi.md", "---\nbottle: copy\n---\nfrom the project\n")?;
    home.write("project/.bottle/bottles/copy.md", "---\nextends: hi\n---\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &["list", "agents"],
            &["list", "bottles"],
            &["start", "hi"],
            &["start", "hi", "--yes"],
            &["start", "hi", "--bottle", "hi", "--dry-run"],
        ],
    )?);
    Ok(())
}
