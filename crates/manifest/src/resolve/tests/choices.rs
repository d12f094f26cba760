//! Tests that the result records who chose the bottles, and shows this to the user.

use super::directories::{Directories, EMPTY};

#[test]
fn reports_the_choice_and_what_it_replaces() {
    let agent = "---\nbottle: [first, second, first]\n---\n";
    let directories = Directories::with(&[
        ("home/agents/mine.md", agent),
        ("home/agents/shared.md", agent),
        ("home/agents/claude.md", agent),
        ("home/bottles/first.md", EMPTY),
        ("home/bottles/second.md", EMPTY),
        ("work/.bottle/agents/shared.md", agent),
        ("work/.bottle/agents/project.md", agent),
    ]);
    let shown =
        ["mine second", "mine", "claude", "shared", "project", "project first", "shell"].map(|picks| {
            let resolved = directories.resolve(picks).expect(picks);
            let bottles: Vec<_> = resolved.manifest.bottles.iter().map(|name| name.as_str()).collect();
            let (choice, replaces) = (resolved.choice, resolved.agent_replaces);
            assert_eq!(resolved.warnings, [""; 0], "{picks}");
            let source = directories.relative(&resolved.manifest.agent.source.to_string());
            format!("{picks}: {source}, {choice:?} {}, replaces {replaces:?}\n", bottles.join(" "))
        });
    insta::assert_snapshot!(shown.concat(), @r"
    mine second: home/agents/mine.md, Picked second, replaces None
    mine: home/agents/mine.md, AgentDefault first second, replaces None
    claude: home/agents/claude.md, AgentDefault first second, replaces Some(Shipped)
    shared: work/.bottle/agents/shared.md, Suggested first second, replaces Some(Home)
    project: work/.bottle/agents/project.md, Suggested first second, replaces None
    project first: work/.bottle/agents/project.md, Picked first, replaces None
    shell: shipped:agents/shell.md, AgentDefault shell, replaces None
    ");
}

#[test]
fn warns_of_bottles_in_a_project() {
    let directories = Directories::with(&[
        ("home/agents/coder.md", ""),
        ("home/bottles/mine.md", EMPTY),
        ("work/.bottle/bottles/mine.md", "---\nsupervise: false\n---\n"),
    ]);
    let resolved = directories.resolve("coder mine").expect("resolved");
    assert!(resolved.manifest.supervise.value, "the project's bottle is not read");
    insta::assert_snapshot!(directories.relative(&resolved.warnings.join("\n")), @r"
    work/.bottle/bottles is ignored: a project must not define what its agents may reach; put bottles in $BOTTLE_HOME/bottles
    ");
}
