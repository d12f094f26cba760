//! Tests names in scripts other than Latin: labels, agents, files, directories.

use anyhow::Result;
use bottle_test_support::pty::Pty;

use crate::home::{home, run, snapshot, transcript, transcripts};

#[test]
fn keeps_labels_unchanged_and_refuses_those_without_a_slug() -> Result<()> {
    let home = home()?;
    let mut text = String::new();
    for label in ["Привет", "日本", "שלום", "🦀", "", " ", "\u{e9}!", "\u{202e}\u{200b}"] {
        text += &transcript(&home, &["start", "hi", "-q", "--label", label])?;
        text += "\n";
    }
    assert!(!home.bottle_home().join("state").exists());
    for label in ["Лейбл 1", "Straße Nord", "日本 fix 🦀", "\u{202e}rtl", "line\nbreak", "\u{1b}[31mred"]
    {
        let _ = run(&home, &["start", "nap", "--detach", "-q", "--label", label])?.expect_code(0);
    }
    text += &transcript(&home, &["list"])?;
    let listed = run(&home, &["list", "--json"])?.json()?;
    let labels: Vec<_> = listed.as_array().into_iter().flatten().map(|row| row["label"].clone()).collect();
    assert!(labels.contains(&"\u{202e}rtl".into()) && labels.contains(&"line\nbreak".into()), "{labels:?}");
    let _ = run(&home, &["cleanup", "--all", "--yes", "-q"])?.expect_code(0);
    snapshot!(text);
    Ok(())
}

#[test]
fn table_columns_align_in_every_script() -> Result<()> {
    let home = home()?;
    for (slug, label) in
        [("1", "Лейбл 1"), ("2", "日本語 2"), ("3", "🦀🦀 3"), ("e-4", "e\u{301} 4"), ("plain-5", "plain 5")]
    {
        let _ = run(&home, &["start", "nap", "--detach", "-q", "--label", label])?.expect_code(0);
        assert!(run(&home, &["list"])?.stdout.contains(&format!("\t{slug}\t{label} (nap)")), "{label}");
    }
    let mut pty = Pty::spawn(home.program(["list"])?.command(), 24, 100)?;
    assert_eq!(pty.wait_exit()?, 0);
    let screen = pty.last_screen()?;
    let rows: Vec<&str> = screen.lines().filter(|line| line.contains("(nap)")).collect();
    assert_eq!(rows.len(), 5, "{screen}");
    // The width is measured in cells of the terminal. A wide character has two cells, and a combining mark has none.
    let cells = |row: &str| {
        let before = row.split("running").next().unwrap_or_default();
        dialoguer::console::measure_text_width(before)
    };
    let first = cells(rows[0]);
    assert!(rows.iter().all(|row| cells(row) == first), "{screen}");
    Ok(())
}

#[test]
fn agent_names_are_ascii_and_other_files_are_skipped_with_a_warning() -> Result<()> {
    let home = home()?;
    let text = transcripts(
        &home,
        &[&["start", "Привет"], &["start", "Hi"], &["start", "hi.md"], &["info", "日本"], &["stop", "Лейбл"]],
    )?;
    for file in ["Привет", "HI", "a b", "a\nb", "日本"] {
        home.write(&format!("home/.bottle/agents/{file}.md"), "---\nbottle: hi\n---\n")?;
    }
    let mut listed = run(&home, &["list", "agents"])?.expect_code(0);
    let mut lines: Vec<&str> = listed.stderr.lines().collect();
    lines.sort_unstable();
    listed.stderr = lines.join("\n") + "\n";
    snapshot!(text + "\n" + &home.scrub()?.apply(&listed.transcript()));
    Ok(())
}

#[test]
fn copies_files_and_directories_of_any_name() -> Result<()> {
    let home = home()?;
    let directory = home.project().join("папка 日本\nשלום");
    std::fs::create_dir(&directory)?;
    let names = ["файл.txt", "日本 語", "שלום", "🦀", "new\nline", "-dash", "e\u{301}"];
    for name in names {
        std::fs::write(directory.join(name), name)?;
    }
    let mut start = home.program(["start", "nap", "--cwd", "--detach", "--label", "one", "-q"])?;
    let _ = start.directory(&directory).run()?.expect_code(0);
    for name in names {
        let (from, to) = (format!("one:{name}"), format!("./out {name}"));
        let _ = run(&home, &["cp", &from, &to])?.expect_code(0);
        assert_eq!(std::fs::read_to_string(home.project().join(format!("out {name}")))?, name);
        let _ = run(&home, &["cp", &to, &format!("one:back {name}")])?.expect_code(0);
        let shown = run(&home, &["exec", "one", "--", "cat", &format!("back {name}")])?.expect_code(0);
        assert_eq!(shown.stdout, name);
    }
    snapshot!(transcript(&home, &["cp", "one:нет такого", "x"])?);
    Ok(())
}
