//! Tests several `--cwd`: the workspace has a directory for each flag. The fake backend has no git, so the tests need
//! the Linux backend.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::home::{home, run, snapshot, transcripts};
use crate::pull::{LINUX, inside, with_git};

const START: [&str; 9] =
    ["start", "work", "--cwd=./api", "--cwd=./web", "--cwd=./plain", "--detach", "--label", "one", "-q"];

/// Makes the repositories `api` and `web` and the directory `plain` in the project.
fn with_directories(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_git(test)? else { return Ok(None) };
    for name in ["api", "web"] {
        home.write(&format!("project/{name}/code"), "one\n")?;
        home.write(&format!("project/{name}/.gitignore"), "built\n")?;
        for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
            home.git(&[&["-C", name], arguments].concat())?;
        }
    }
    home.write("project/plain/notes", "one\n")?;
    Ok(Some(home))
}

fn with_a_bottle(test: &str) -> Result<Option<TestHome>> {
    let Some(home) = with_directories(test)? else { return Ok(None) };
    let started = run(&home, &START)?.expect_code(0);
    ensure!(started.stderr.is_empty(), "{}", started.stderr);
    Ok(Some(home))
}

fn read(home: &TestHome, path: &str) -> Result<String> {
    Ok(fs::read_to_string(home.project().join(path))?)
}

fn stop(home: &TestHome) -> Result<Outcome> {
    Ok(run(home, &["stop", "one", "--time", "0"])?.expect_code(0))
}

#[test]
fn refuses_directories_that_cannot_be_in_one_workspace() -> Result<()> {
    let mut home = home()?;
    home.bottle("work", LINUX)?.agent("work", "---\nbottle: work\n---\n")?;
    for path in ["api/src/code", "other/api/code", "live/code", "x/.git/HEAD"] {
        home.write(&format!("project/{path}"), "one\n")?;
    }
    let start = |flags: &[&'static str]| [&["start", "work", "--dry-run"][..], flags].concat();
    let each: Vec<Vec<&str>> = [
        &["--cwd=./api", "--cwd=./other/api"][..],
        &["--cwd=./api", "--cwd=./api/src"],
        &["--cwd", "--cwd=./api"],
        &["--cwd=./api", "--cwd=api/"],
        &["--cwd=all", "--cwd"],
        &["--cwd=./api", "--cwd=live"],
        &["--cwd=./api", "--cwd=./absent"],
        &["--cwd=./api", "--cwd=./api/src/code"],
        &["--cwd=./api", "--cwd=./x/.git"],
        &["--cwd=./api", "--cwd=/"],
    ]
    .into_iter()
    .map(start)
    .collect();
    let each: Vec<&[&str]> = each.iter().map(Vec::as_slice).collect();
    let text = transcripts(&home, &each)?;
    snapshot!(text);
    let user_home = format!("--cwd={}", home.home().display());
    let refused = run(&home, &["start", "work", "--dry-run", "--cwd=./api", &user_home])?.expect_code(2);
    ensure!(refused.stderr.contains("it is your home directory"), "{}", refused.stderr);
    Ok(())
}

#[test]
fn copies_each_directory_into_the_workspace() -> Result<()> {
    let Some(home) = with_directories("copies_each_directory_into_the_workspace")? else { return Ok(()) };
    fs::create_dir_all(home.project().join("api/built"))?;
    home.write("project/api/built/x", "built\n")?;
    home.write("project/plain/.env", "x\n")?;
    let dry = run(&home, &[&START[..5], &["--dry-run"]].concat())?.expect_code(0).stdout;
    let project = home.project().display().to_string();
    for line in [
        &format!("  api/: a copy of {project}/api without ignored files: "),
        &format!("  web/: a copy of {project}/web without ignored files: "),
        &format!("  plain/: a copy of {project}/plain without ignored files: 2 files, 6 B\n"),
        "  --cwd copies private files of plain: .env\n",
        "  --cwd copies all files of plain: there is no .gitignore in it\n",
    ] {
        ensure!(dry.contains(line), "{line}: {dry}");
    }
    let directories = serde_json::json!([
        {"name": "api", "path": format!("{project}/api"), "all": false},
        {"name": "web", "path": format!("{project}/web"), "all": false},
        {"name": "plain", "path": format!("{project}/plain"), "all": false},
    ]);
    let json = run(&home, &[&START[..5], &["--dry-run", "--json"]].concat())?.expect_code(0).json()?;
    ensure!(json["folders"] == directories, "{json}");
    let started = run(&home, &START[..START.len() - 1])?.expect_code(0);
    ensure!(started.stderr.contains("private files of plain: .env"), "{}", started.stderr);
    let files = "pwd; find . -name .git -prune -o -type f -print | LC_ALL=C sort; git -C api log --format=%s; \
                 test ! -e .git; stat -c '%U' api plain | sort -u | wc -l";
    let expected = "/workspace\n./api/.gitignore\n./api/code\n./plain/.env\n./plain/notes\n./web/.gitignore\n\
                    ./web/code\nbegin\n1\n";
    let found = inside(&home, files)?;
    ensure!(found == expected, "{found}");
    let listed = run(&home, &["list", "--json"])?.json()?;
    ensure!(listed[0]["folders"] == directories && listed[0]["cwd"] == format!("{project}/api"), "{listed}");
    let _ = stop(&home)?;
    let _ = run(&home, &["start", "work", "--cwd=./api", "--detach", "--label", "two", "-q"])?.expect_code(0);
    ensure!(
        run(&home, &["exec", "two", "--", "ls"])?.stdout == "code\n",
        "one directory is the workspace itself"
    );
    let listed = run(&home, &["list", "--json"])?.json()?;
    let two = listed.as_array().into_iter().flatten().find(|bottle| bottle["slug"] == "two");
    ensure!(two.is_some_and(|two| two.get("folders").is_none()), "{listed}");
    let _ = run(&home, &["stop", "two", "--time", "0", "-q"])?;
    Ok(())
}

#[test]
fn shows_and_pulls_the_work_of_all_directories() -> Result<()> {
    let Some(home) = with_a_bottle("shows_and_pulls_the_work_of_all_directories")? else { return Ok(()) };
    inside(
        &home,
        "cd api; echo two >>code; git commit -qam more; cd ../web; echo new >new; cd ..; \
         echo x >plain/x; echo y >beside",
    )?;
    let base = |name: &str| home.git(&["-C", name, "rev-parse", "--short=12", "HEAD"]);
    // Both commits have the same id if they were made in the same second.
    let bases = [base("api")?, base("web")?];
    let text = transcripts(
        &home,
        &[
            &["diff", "one"],
            &["diff", "one", "--stat"],
            &["diff", "one", "--name-only", "--json"],
            &["diff", "one", "--directory", "api"],
            &["diff", "one", "--directory", "absent"],
            &["diff", "one", "--directory", "../x"],
            &["diff", "one", "--directory", "plain"],
            &["pull", "one"],
            &["pull", "one", "--uncommitted", "--directory", "web"],
            &["pull", "one", "--uncommitted", "--json"],
            &["pull", "one", "--directory", "plain"],
            &["fs", "reset", "one", "--dry-run"],
            &["fs", "reset", "one", "api", "--yes", "--json"],
            &["fs", "reset", "one", "--yes"],
        ],
    )?;
    ensure!(
        inside(&home, "cat api/code; ls web plain; cat beside")? == "one\nplain:\nnotes\n\nweb:\ncode\ny\n"
    );
    ensure!(home.git(&["-C", "web", "show", "bottle/one:new"])? == "new\n");
    // Files that are in no repository are not lost.
    let ended = stop(&home)?;
    ensure!(ended.stderr.contains("bottle resume one"), "{}", ended.stderr);
    snapshot!(bases.iter().fold(text, |text, base| text.replace(base.trim(), "[BASE]")));
    Ok(())
}

/// After a pull from all directories, no work is unsaved.
#[test]
fn a_bottle_whose_directories_were_all_pulled_has_no_unsaved_work() -> Result<()> {
    let test = "a_bottle_whose_directories_were_all_pulled_has_no_unsaved_work";
    let Some(home) = with_directories(test)? else { return Ok(()) };
    let start = [&START[..4], &START[5..]].concat();
    for (pull, is_kept) in [
        (&["pull", "one", "--uncommitted", "--directory", "api", "-q"][..], true),
        (&["pull", "one", "--uncommitted", "-q"], false),
    ] {
        let _ = run(&home, &start)?.expect_code(0);
        inside(&home, "echo two >>api/code; echo three >>web/code")?;
        let _ = run(&home, pull)?.expect_code(0);
        let ended = stop(&home)?;
        ensure!(ended.stderr.contains("bottle resume one") == is_kept, "{pull:?}: {}", ended.stderr);
        if is_kept {
            let _ = run(&home, &["discard", "one", "--yes", "-q"])?.expect_code(0);
        }
    }
    Ok(())
}

#[test]
fn applies_to_all_directories_or_to_none() -> Result<()> {
    let Some(home) = with_a_bottle("applies_to_all_directories_or_to_none")? else { return Ok(()) };
    inside(&home, "echo two >>api/code; echo agent >>web/code; echo new >web/new")?;
    home.write("project/web/code", "one\nmine\n")?;
    let mut text = transcripts(&home, &[&["apply", "one", "--yes"]])?;
    ensure!(read(&home, "api/code")? == "one\n", "one directory was changed");
    home.write("project/web/code", "one\n")?;
    text += &transcripts(&home, &[&["apply", "one"], &["apply", "one", "--dry-run", "--json"]])?;
    // A file of one directory changes while the user reads the question.
    for (answer, result) in [("n\r", "nothing was changed"), ("y\r", "cannot change")] {
        let mut terminal = home.on_terminal(&["apply", "one"], 40, 150)?;
        terminal.wait_for("Change 1 file in")?;
        terminal.wait_for("and 2 files in")?;
        home.write("project/web/code", "mine\n")?;
        terminal.type_keys(answer)?;
        terminal.wait_for(result)?;
        terminal.wait_exit()?;
        ensure!(read(&home, "api/code")? == "one\n", "one directory was changed");
        home.write("project/web/code", "one\n")?;
    }
    text +=
        &transcripts(&home, &[&["apply", "one", "--directory", "web", "--yes"], &["apply", "one", "--yes"]])?;
    text += &transcripts(&home, &[&["apply", "one", "--yes", "--json"]])?;
    ensure!(read(&home, "api/code")? == "one\ntwo\n" && read(&home, "web/code")? == "one\nagent\n");
    let _ = stop(&home)?;
    snapshot!(text);
    Ok(())
}

/// Forks and resumed bottles have the same directories.
#[test]
fn forks_and_resumed_bottles_have_the_directories() -> Result<()> {
    let Some(home) = with_a_bottle("forks_and_resumed_bottles_have_the_directories")? else { return Ok(()) };
    inside(&home, "cd api; echo two >>code; git commit -qam more")?;
    let _ = run(&home, &["fork", "one", "--label", "two", "-y", "-q"])?.expect_code(0);
    let commit =
        "cd web; echo three >>code; git -c user.name=A -c user.email=a@example.com commit -qam third";
    let _ = run(&home, &["exec", "two", "--", "/bin/sh", "-ec", commit])?.expect_code(0);
    let mut text = transcripts(
        &home,
        &[
            &["diff", "one", "two"],
            &["diff", "one", "two", "--directory", "web", "--name-only"],
            &["pull", "one", "--all-forks", "-q"],
        ],
    )?;
    ensure!(home.git(&["-C", "web", "show", "bottle/two:code"])? == "one\nthree\n");
    let _ =
        run(&home, &["start", "work", "--cwd=./api", "--detach", "--label", "single", "-q"])?.expect_code(0);
    text += &transcripts(
        &home,
        &[
            &["diff", "one", "single"],
            &["diff", "single", "--name-only"],
            &["diff", "single", "--directory", "src"],
        ],
    )?;
    for slug in ["two", "single"] {
        let _ = run(&home, &["stop", slug, "--time", "0", "-q"])?.expect_code(0);
    }
    let _ = run(&home, &["commit", "one", "-q"])?.expect_code(0);
    let _ = stop(&home)?;
    let _ = run(&home, &["resume", "one", "--detach", "-y", "-q"])?.expect_code(0);
    ensure!(run(&home, &["diff", "one", "--name-only"])?.stdout == "api/code\n");
    let _ = stop(&home)?;
    snapshot!(text);
    Ok(())
}

/// If the files of a bottle are missing, a resume copies the directories again.
#[test]
fn a_bottle_that_is_built_anew_has_the_directories() -> Result<()> {
    let Some(home) = with_a_bottle("a_bottle_that_is_built_anew_has_the_directories")? else { return Ok(()) };
    inside(&home, "echo two >>api/code")?;
    let _ = stop(&home)?;
    fs::remove_dir_all(home.bottle_home().join("state/one/agent"))?;
    let resumed = run(&home, &["resume", "one", "--detach", "-y"])?.expect_code(0);
    ensure!(resumed.stderr.contains("built anew"), "{}", resumed.stderr);
    ensure!(inside(&home, "cat api/code web/code plain/notes")? == "one\none\none\n");
    let _ = stop(&home)?;
    Ok(())
}

/// The repositories of an imported bottle are found by their directory.
#[test]
fn work_of_an_imported_bottle_is_pulled_by_directory() -> Result<()> {
    let Some(home) = with_a_bottle("work_of_an_imported_bottle_is_pulled_by_directory")? else {
        return Ok(());
    };
    inside(&home, "cd api; echo two >>code; git commit -qam more")?;
    let _ = stop(&home)?;
    let _ = run(&home, &["export", "one", "-o", "one.bottle", "-q"])?.expect_code(0);
    let _ = run(&home, &["import", "one.bottle", "--label", "moved", "-y", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "moved", "--detach", "-y", "-q"])?.expect_code(0);
    let pull = ["pull", "moved", "--directory", "api", "--repository", "api"];
    let refused = run(&home, &pull[..4])?;
    ensure!(refused.code != 0, "the repository of the working directory is not meant");
    let pulled = run(&home, &pull)?.expect_code(0);
    ensure!(pulled.stdout == "api: bottle/moved\n", "{}", pulled.stdout);
    ensure!(home.git(&["-C", "api", "show", "bottle/moved:code"])? == "one\ntwo\n");
    let _ = run(&home, &["stop", "moved", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

/// The work in two directories of one repository goes into different branches.
#[test]
fn pulls_from_two_directories_of_one_repository() -> Result<()> {
    let Some(home) = with_directories("pulls_from_two_directories_of_one_repository")? else { return Ok(()) };
    for name in ["left", "my right"] {
        home.write(&format!("project/api/{name}/code"), "one\n")?;
    }
    home.git(&["-C", "api", "add", "-A"])?;
    home.git(&["-C", "api", "commit", "-qm", "more"])?;
    let start =
        ["start", "work", "--cwd=./api/left", "--cwd=./api/my right", "--detach", "--label", "one", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    inside(&home, "echo two >>left/code; echo three >>'my right/code'")?;
    let text = transcripts(
        &home,
        &[
            &["diff", "one", "--name-only"],
            &["diff", "one", "--name-only", "--directory", "left"],
            &["pull", "one"],
            &["pull", "one", "--uncommitted"],
        ],
    )?;
    let pulled =
        home.git(&["-C", "api", "show", "bottle/one.left:left/code", "bottle/one.my-right:my right/code"])?;
    ensure!(pulled == "one\ntwo\none\nthree\n", "{pulled}");
    let _ = stop(&home)?;
    ensure!(!run(&home, &["list"])?.stdout.contains("kept"), "all was pulled");
    snapshot!(text);
    Ok(())
}

/// `--repository` copies the repositories that contain the directories; the agent starts in the workspace.
#[test]
fn copies_whole_repositories() -> Result<()> {
    let mut home = home()?;
    let pwd = "---\nbackend: linux\nagent_provider: {template: command, command: [sh, -c, 'pwd; sleep 600']}\n---\n";
    home.bottle("work", pwd)?.agent("work", "---\nbottle: work\n---\n")?;
    if !home.runs_with_git("copies_whole_repositories", "linux")? {
        return Ok(());
    }
    for name in ["api", "web"] {
        home.write(&format!("project/{name}/sub/code"), "one\n")?;
        for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "begin"]] {
            home.git(&[&["-C", name], arguments].concat())?;
        }
    }
    let same =
        run(&home, &["start", "work", "--cwd=./api/sub", "--cwd=./web/sub", "--dry-run"])?.expect_code(2);
    ensure!(same.stderr.contains("both would be the directory sub"), "{}", same.stderr);
    let start = ["start", "work", "--cwd=./api/sub", "--cwd=./web", "--detach", "--label", "one"];
    let only = run(&home, &start)?.expect_code(0);
    ensure!(only.stderr.contains("`--repository` copies whole repositories"), "{}", only.stderr);
    ensure!(run(&home, &["exec", "one", "--", "ls"])?.stdout == "sub\nweb\n");
    let _ = stop(&home)?;
    let _ = run(&home, &[&start[..], &["--repository"]].concat())?.expect_code(0);
    ensure!(run(&home, &["exec", "one", "--", "ls"])?.stdout == "api\nweb\n");
    let patience = Instant::now() + Duration::from_secs(30);
    while !run(&home, &["logs", "one"])?.stdout.contains("/workspace") {
        ensure!(Instant::now() < patience, "the agent prints nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(run(&home, &["logs", "one"])?.stdout == "/workspace\n");
    let _ = stop(&home)?;
    Ok(())
}
