//! Finds operations that the floor (the rules that deny in each mode) may deny in code of another language (Python,
//! Perl, Ruby, JavaScript, awk).
//!
//! The code is not parsed: calls are recognised by the name of a function and the string literals after the name.

/// An operation on the system that the code performs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    /// Runs a line in a shell.
    Run(String),
    /// Runs a program with arguments.
    Execute(Vec<String>),
    /// Deletes a path with all its contents.
    Delete(String),
    /// Opens a file. The flag is true if the file is opened for writing.
    Open(String, bool),
}

/// Functions that run a shell line or a program.
const RUNS: &[&str] = &[
    "system",
    "popen",
    "exec",
    "spawn",
    "run",
    "call",
    "check_output",
    "check_call",
    "shell",
    "getoutput",
    "command",
];
/// Functions that delete a directory tree.
const DELETES: &[&str] =
    &["rmtree", "rm_rf", "rm_r", "rmsync", "rimraf", "remove_tree", "remove_dir_all", "rmdirsync", "rm"];
/// Functions that open a file, and functions that write a file.
const OPENS: &[&str] =
    &["open", "readfilesync", "readfile", "read", "read_text", "fopen", "file_get_contents", "slurp"];
const WRITES: &[&str] =
    &["writefilesync", "writefile", "appendfilesync", "file_put_contents", "unlinksync", "remove", "unlink"];

/// Whether the code starts processes in an endless loop.
pub(crate) fn is_fork_bomb(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    code.contains("fork")
        && ["while", "loop", "for(;;)", "for (;;)", "until"].iter().any(|repeat| code.contains(repeat))
}

/// Returns the operations on the system, in the order of the code.
pub(crate) fn uses(code: &str) -> Vec<Use> {
    let texts = texts(code);
    let mut uses = Vec::new();
    let mut index = 0;
    while index < texts.len() {
        let text = &texts[index];
        let name = function_before(&code[..text.start]);
        // The range `index..end` contains the string literals of one argument list.
        let mut end = index + 1;
        while end < texts.len() && is_list_gap(&code[texts[end - 1].end..texts[end].start]) {
            end += 1;
        }
        let list: Vec<&str> = texts[index..end].iter().map(|text| text.value.as_str()).collect();
        let before = code[..text.start].trim_end();
        let after = code[text.end..].trim_start();
        if before.ends_with('>') && !before.ends_with("=>") && !before.ends_with("->") {
            // In awk, `print > "FILE"` writes a file. In other languages, `>` compares strings. The floor protects no
            // path that such a string names.
            uses.push(Use::Open(text.value.clone(), true));
        } else if before.ends_with('|') && !before.ends_with("||") || after.starts_with("| getline") {
            uses.push(Use::Run(text.value.clone()));
        } else if text.quote == '`' || RUNS.iter().any(|run| name.starts_with(run)) {
            uses.push(if list.len() > 1 {
                Use::Execute(list.iter().map(|&word| word.to_owned()).collect())
            } else {
                Use::Run(text.value.clone())
            });
        } else if DELETES.contains(&name.as_str()) {
            uses.extend(list.iter().map(|&path| Use::Delete(path.to_owned())));
        } else if WRITES.contains(&name.as_str()) {
            uses.push(Use::Open(text.value.clone(), true));
        } else if OPENS.contains(&name.as_str()) || name == "path" {
            let mode = list.get(1).copied().unwrap_or_default();
            let writes = mode.starts_with(['w', 'a', 'x', '>']) || mode.contains('+');
            // In a call of Perl's `open`, the mode precedes the path.
            let (path, writes) = if text.value.starts_with('>') && list.len() > 1 {
                (list[1].to_owned(), true)
            } else {
                (text.value.clone(), writes || code[text.end..].starts_with(").write"))
            };
            uses.push(Use::Open(path, writes));
        }
        index = end;
    }
    // The floor protects only paths with a directory.
    uses.retain(|used| !matches!(used, Use::Open(path, _) if !path.contains('/')));
    uses
}

struct Quoted {
    start: usize,
    end: usize,
    quote: char,
    value: String,
}

/// Returns the string literals of the code.
fn texts(code: &str) -> Vec<Quoted> {
    let mut found = Vec::new();
    let mut rest = code.char_indices();
    while let Some((start, quote)) = rest.next() {
        if !matches!(quote, '"' | '\'' | '`') {
            continue;
        }
        let mut value = String::new();
        while let Some((at, inner)) = rest.next() {
            match inner {
                '\\' => value.extend(rest.next().map(|(_, escaped)| escaped)),
                inner if inner == quote => {
                    let end = at + quote.len_utf8();
                    found.push(Quoted { start, end, quote, value: std::mem::take(&mut value) });
                    break;
                }
                inner => value.push(inner),
            }
        }
    }
    found
}

/// Returns, in lower case, the name of the function whose argument list begins at the end of `code`.
fn function_before(code: &str) -> String {
    let code = code.trim_end().trim_end_matches(['[', '(', ' ', '{']).trim_end();
    let name: String = code.chars().rev().take_while(|at| at.is_ascii_alphanumeric() || *at == '_').collect();
    name.chars().rev().collect::<String>().to_ascii_lowercase()
}

/// Whether the code between two string literals is only a comma.
fn is_list_gap(code: &str) -> bool {
    code.trim().trim_start_matches('[').trim() == "," || code.trim() == ",["
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_the_system() {
        for (code, expected) in [
            ("import os; os.system('rm -rf /')", vec![Use::Run("rm -rf /".into())]),
            (
                r#"subprocess.run(["rm", "-rf", "/"])"#,
                vec![Use::Execute(vec!["rm".into(), "-rf".into(), "/".into()])],
            ),
            ("shutil.rmtree('/')", vec![Use::Delete("/".into())]),
            ("open('/etc/passwd', 'w').write('x')", vec![Use::Open("/etc/passwd".into(), true)]),
            ("print(open('/etc/shadow').read())", vec![Use::Open("/etc/shadow".into(), false)]),
            ("require('fs').rmSync('/', {recursive: true})", vec![Use::Delete("/".into())]),
            ("print `rm -rf /`", vec![Use::Run("rm -rf /".into())]),
            (r#"BEGIN { system("halt") }"#, vec![Use::Run("halt".into())]),
            (r#"BEGIN { print "x" > "/etc/x" }"#, vec![Use::Open("/etc/x".into(), true)]),
            (r#"{ print | "halt" }"#, vec![Use::Run("halt".into())]),
            (r#"BEGIN { "halt" | getline x }"#, vec![Use::Run("halt".into())]),
            (r#"a => "/etc/x", b || "halt""#, vec![]),
            ("print('sudo is not used')", vec![]),
            ("print('unclosed", vec![]),
            ("'\\", vec![]),
        ] {
            assert_eq!(uses(code), expected, "{code}");
        }
    }

    #[test]
    fn loops_of_forks() {
        assert!(is_fork_bomb("import os\nwhile True: os.fork()"));
        assert!(is_fork_bomb("fork while 1"));
        assert!(!is_fork_bomb("os.fork()"));
    }

    proptest::proptest! {
        #[test]
        fn no_code_panics(code in ".{0,80}") {
            uses(&code);
        }
    }
}
