use super::*;
use crate::request::tests::request;

fn text(n: u64, text: &str) -> String {
    format!(
        "data: {{\"id\":\"c{n}\",\"created\":{n},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
    )
}

fn opening(n: u64) -> String {
    format!(
        "data: {{\"id\":\"c{n}\",\"created\":{n},\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\n"
    )
}

fn usage(n: u64, prompt: u64, completion: u64) -> String {
    format!(
        "data: {{\"id\":\"c{n}\",\"created\":{n},\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{}}}}}\n\n",
        prompt + completion
    )
}

fn sent(framed: &mut Framed) -> String {
    let bytes: Vec<_> = std::iter::from_fn(|| framed.next()).flatten().collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn p15_the_account_is_kept_from_those_who_did_not_ask() {
    for (asked_by_us, shown) in [(true, false), (false, true)] {
        let mut framed = Framed::new(asked_by_us, true);
        let stream = [opening(1), text(1, "a"), usage(1, 3, 1), "data: [DONE]\n\n".to_owned()];
        assert_eq!(framed.take_in(stream.concat().into()), Taken::Well);
        let sent = sent(&mut framed);
        assert_eq!(sent.contains("\"usage\""), shown);
        assert!(sent.starts_with(&(opening(1) + &text(1, "a"))) && sent.ends_with("data: [DONE]\n\n"));
        assert_eq!(framed.transcript().usage, Some(Usage { prompt_tokens: 3, completion_tokens: 1 }));
        assert!(framed.is_done() && !framed.can_continue());
    }
}

#[test]
fn p10_bytes_are_those_that_came_however_they_were_cut() {
    let stream =
        [opening(1), ": comment\r\n\r\n".to_owned(), text(1, "读写😀é"), "event: x\ndata: y\n\n".into()].concat();
    for cut in 0..=stream.len() {
        let mut framed = Framed::new(true, true);
        let (a, b) = stream.as_bytes().split_at(cut);
        framed.take_in(Bytes::copy_from_slice(a));
        framed.take_in(Bytes::copy_from_slice(b));
        assert_eq!(sent(&mut framed), stream, "cut at {cut}");
    }
}

#[test]
fn a_continued_answer_is_one_answer() {
    let mut framed = Framed::new(false, true);
    framed.take_in([opening(1), text(1, "one "), text(1, "two ")].concat().into());
    framed.take_in(Bytes::from_static(b"data: {\"id\":\"c1\",\"half"));
    let first = sent(&mut framed);
    assert!(framed.can_continue());
    assert_eq!(framed.transcript().text, "one two ");
    framed.continues(Continues { prompt_tokens: Some(5), completion_tokens: 2, skip: " ".into() }, false);
    let rest = [opening(2), text(2, " "), text(2, "three"), usage(2, 7, 2), "data: [DONE]\n\n".to_owned()].concat();
    assert_eq!(framed.take_in(rest.into()), Taken::Well);
    let all = first + &sent(&mut framed);
    assert!(!all.contains("c2") && !all.contains("half") && !all.contains("\"created\":2"), "{all}");
    assert_eq!(all.matches("assistant").count(), 1);
    assert!(all.contains("\"prompt_tokens\":5") && all.contains("\"completion_tokens\":3"), "{all}");
    assert!(all.contains("\"total_tokens\":8"), "{all}");
    assert_eq!(framed.transcript().text, "one two three");
    assert_eq!(framed.transcript().usage, Some(Usage { prompt_tokens: 5, completion_tokens: 3 }));
}

#[test]
fn an_engine_that_says_that_it_died_is_continued_and_a_wrong_request_is_not() {
    let mut framed = Framed::new(true, true);
    framed.take_in(text(1, "a").into());
    assert_eq!(framed.take_in(Bytes::from_static(b"data: {\"error\":{\"code\":500}}\n\n")), Taken::Failed);
    assert_eq!(sent(&mut framed), text(1, "a"));
    let wrong = "data: {\"error\":{\"code\":400}}\n\n";
    assert_eq!(framed.take_in(wrong.into()), Taken::Well);
    assert_eq!(sent(&mut framed), wrong);
}

#[test]
fn what_is_left_to_say_is_said() {
    for (body, accounted) in
        [(r#"{"stream":true,"stream_options":{"include_usage":true}}"#, true), (r#"{"stream":true}"#, false)]
    {
        let request = request("/v1/chat/completions", body);
        let mut framed = Framed::new(false, true);
        framed.take_in(text(1, "a").into());
        sent(&mut framed);
        framed.close(&request, None, Some(Usage { prompt_tokens: 4, completion_tokens: 1 }));
        let closing = sent(&mut framed);
        assert_eq!(closing.contains("\"total_tokens\":5"), accounted, "{closing}");
        assert!(closing.ends_with("data: [DONE]\n\n") && framed.is_done());
    }
}

#[test]
fn white_space_is_not_said_twice_and_not_lost() {
    for (skip, parts, expected) in [
        ("\n\n", vec!["\\n\\nx"], "a\n\nx"),
        ("\n\n", vec!["\\n", "\\n", "x"], "a\n\nx"),
        ("\n\n", vec!["x"], "a\n\nx"),
        ("\n\n", vec!["\\nx"], "a\n\nx"),
        (" ", vec![" ", " x"], "a  x"),
    ] {
        let mut framed = Framed::new(false, true);
        framed.take_in(text(1, &format!("a{}", skip.replace('\n', "\\n"))).into());
        framed.continues(Continues { skip: skip.into(), ..Continues::default() }, false);
        parts.iter().for_each(|part| _ = framed.take_in(text(2, part).into()));
        assert_eq!(framed.transcript().text, expected, "{parts:?}");
        let said: String = sent(&mut framed)
            .split_inclusive("\n\n")
            .map(|event| match chunk::said(event.as_bytes()) {
                Said::Chunk(chunk) => chunk.text,
                _ => String::new(),
            })
            .collect();
        assert_eq!(said, expected, "{parts:?}");
    }
}

#[test]
fn an_answer_that_may_have_no_more_tokens_ends_for_that() {
    let request = request("/v1/completions", r#"{"stream":true}"#);
    let mut framed = Framed::new(true, true);
    framed.close(&request, Some("length"), None);
    let closing = sent(&mut framed);
    assert!(closing.contains(r#""finish_reason":"length""#) && closing.contains(r#""text":"""#), "{closing}");
}
