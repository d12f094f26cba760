use super::*;

/// Answers every question and remembers it.
struct User {
    answer: Option<&'static str>,
    questions: Vec<String>,
}

impl Ask for User {
    fn secret(&mut self, question: &str) -> io::Result<Option<Secret>> {
        self.questions.push(question.to_owned());
        Ok(self.answer.map(|answer| Secret::new(answer.to_owned())))
    }
}

fn host(env: &[(&str, &str)], home: &Path) -> Host {
    Host {
        env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        cwd: home.to_owned(),
        home: home.join(".bottle"),
        user_home: home.to_owned(),
        runtime: home.join("run"),
        program: "/bin/bottle".into(),
    }
}

fn need(id: &str, source: SecretSource) -> SecretNeed {
    SecretNeed { id: id.to_owned(), source, purpose: format!("route {id}") }
}

fn command(argv: &[&str]) -> SecretSource {
    SecretSource::Command(argv.iter().map(|word| (*word).to_owned()).collect())
}

fn value<'a>(secrets: &'a Secrets, id: &str) -> &'a str {
    secrets.values[id].0.expose()
}

async fn problem(host: &Host, source: SecretSource) -> String {
    let error = resolve(host, &[need("x", source)], None).await.expect_err("an error");
    error.to_string()
}

#[tokio::test]
async fn variables_files_and_commands_give_their_text_without_the_last_line_break() {
    let home = tempfile::tempdir().expect("folder");
    std::fs::write(home.path().join("key"), "from-a-file\r\n").expect("write");
    std::fs::set_permissions(home.path().join("key"), std::fs::Permissions::from_mode(0o600)).expect("mode");
    let host = host(&[("TOKEN", "from-env"), ("PATH", "/usr/bin:/bin")], home.path());
    let needs = [
        need("a", SecretSource::Env("TOKEN".into())),
        need("b", SecretSource::File("~/key".into())),
        need("c", command(&["printf", "%s\\n\\n", "$HOME two"])),
    ];
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!(value(&secrets, "a"), "from-env");
    assert_eq!(value(&secrets, "b"), "from-a-file");
    assert_eq!(value(&secrets, "c"), "$HOME two\n", "no shell, and one line break only");
    assert_eq!(secrets.warnings, [] as [String; 0]);
    assert!(!format!("{secrets:?}").contains("from-"));
}

#[tokio::test]
async fn a_file_others_can_read_is_used_with_a_warning() {
    let home = tempfile::tempdir().expect("folder");
    let path = home.path().join("key");
    std::fs::write(&path, "v").expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("mode");
    let needs = [need("a", SecretSource::File(path))];
    let secrets = resolve(&host(&[], home.path()), &needs, None).await.expect("secrets");
    assert!(secrets.warnings[0].contains("chmod 600"), "{:?}", secrets.warnings);
}

#[tokio::test]
async fn everything_missing_is_named_at_once_with_every_way_to_give_it() {
    let home = tempfile::tempdir().expect("folder");
    let needs = [
        need("a", SecretSource::Env("FIRST".into())),
        need("b", SecretSource::Env("EMPTY".into())),
        need("c", SecretSource::Prompt("the PIN".into())),
    ];
    let error = resolve(&host(&[("EMPTY", "")], home.path()), &needs, None).await.expect_err("missing");
    let message = error.to_string();
    for word in ["FIRST is not set (for route a)", "EMPTY", "the PIN"] {
        assert!(message.contains(word), "{message}");
    }
    let hint = error.hint().expect("a hint");
    for word in ["export FIRST=", "terminal", "file:", "cmd:"] {
        assert!(hint.contains(word), "{hint}");
    }
}

#[tokio::test]
async fn a_user_is_asked_once_for_one_source_and_may_cancel() {
    let home = tempfile::tempdir().expect("folder");
    let host = host(&[], home.path());
    let needs = [need("a", SecretSource::Env("T".into())), need("b", SecretSource::Env("T".into()))];
    let mut user = User { answer: Some("typed"), questions: Vec::new() };
    let secrets = resolve(&host, &needs, Some(&mut user)).await.expect("secrets");
    assert_eq!((value(&secrets, "a"), value(&secrets, "b")), ("typed", "typed"));
    assert_eq!(user.questions.len(), 1);
    assert!(user.questions[0].starts_with("T (route a); or file:PATH"), "{:?}", user.questions);
    for answer in [None, Some("")] {
        let mut user = User { answer, questions: Vec::new() };
        let error = resolve(&host, &needs, Some(&mut user)).await.expect_err("cancelled");
        assert!(matches!(error, SecretError::Cancelled(_)));
    }
}

#[tokio::test]
async fn what_cannot_be_a_secret_is_refused_and_never_shown() {
    let home = tempfile::tempdir().expect("folder");
    let host = host(&[("PATH", "/usr/bin:/bin")], home.path());
    let large = home.path().join("large");
    std::fs::write(&large, "x".repeat(SECRET_MAX + 1)).expect("write");
    rustix::fs::mkfifoat(rustix::fs::CWD, home.path().join("pipe"), rustix::fs::Mode::RUSR).expect("pipe");
    for (source, word) in [
        (SecretSource::File(large), "more than 65536 bytes"),
        (SecretSource::File(home.path().join("pipe")), "no regular file"),
        (SecretSource::File(home.path().join("absent")), "No such file"),
        (SecretSource::File("/dev/zero".into()), "no regular file"),
        (command(&["cat", "/dev/zero"]), "more than 65536 bytes"),
        (command(&["printf", "hush; exit 3\\377"]), "no UTF-8"),
        (command(&["sh", "-c", "echo hush; exit 3"]), "exit status: 3"),
        (command(&["true"]), "it is empty"),
        (command(&["no-such-program-here"]), "cannot be started"),
        (command(&[]), "the command is empty"),
    ] {
        let message = problem(&host, source).await;
        assert!(message.contains(word), "{message}");
        assert!(!message.contains("hush"), "{message}");
    }
}

#[tokio::test]
async fn a_reference_that_was_typed_is_read_now_and_from_then_on() {
    let home = tempfile::tempdir().expect("folder");
    let host = host(&[("PATH", "/usr/bin:/bin")], home.path());
    let needs = [need("a", SecretSource::Env("T".into())), need("b", SecretSource::Env("U".into()))];
    let mut user = User { answer: Some("cmd:printf 's3cret value'"), questions: Vec::new() };
    let secrets = resolve(&host, &needs, Some(&mut user)).await.expect("secrets");
    assert_eq!(value(&secrets, "a"), "s3cret value");
    assert!(secrets.warnings[0].contains("T is read from there from now on"), "{:?}", secrets.warnings);
    let file = home.path().join(".bottle/secrets.yml");
    let text = std::fs::read_to_string(&file).expect("kept");
    assert!(text.contains("T: cmd:printf") && text.contains("U: cmd:printf"), "{text}");
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);

    // Nobody has to be asked any more, and a variable that is set goes before it.
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!(value(&secrets, "b"), "s3cret value");
    let host =
        Host { env: [("T".into(), "set".into()), ("PATH".into(), "/usr/bin:/bin".into())].into(), ..host };
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!((value(&secrets, "a"), value(&secrets, "b")), ("set", "s3cret value"));
}

#[tokio::test]
async fn a_reference_that_leads_nowhere_is_not_kept() {
    let home = tempfile::tempdir().expect("folder");
    let host = host(&[], home.path());
    for typed in ["file:/no/such/file", "file:relative", "cmd:", "cmd:no-such-program-here"] {
        let mut user = User { answer: Some(typed), questions: Vec::new() };
        let needs = [need("a", SecretSource::Env("T".into()))];
        let error = resolve(&host, &needs, Some(&mut user)).await.expect_err(typed);
        assert!(matches!(error, SecretError::Unreadable { .. }), "{typed}: {error}");
        assert!(!home.path().join(".bottle/secrets.yml").exists(), "{typed}");
    }
}

#[tokio::test]
async fn a_file_of_references_that_cannot_be_used_is_named_and_no_value_of_it_shown() {
    let home = tempfile::tempdir().expect("folder");
    let host = host(&[], home.path());
    std::fs::create_dir(home.path().join(".bottle")).expect("made");
    for text in [
        "T: hunter2-hunter2\n",
        "T: env:U\n",
        "- hunter2-hunter2\n",
        "T: {a: hunter2-hunter2}\n",
        "T: 'file:hunter2-hunter2'\n",
    ] {
        std::fs::write(home.path().join(".bottle/secrets.yml"), text).expect("written");
        let message = problem(&host, SecretSource::Env("T".into())).await;
        assert!(message.contains("secrets.yml"), "{text}: {message}");
        assert!(!message.contains("hunter2"), "{text}: {message}");
    }
}
