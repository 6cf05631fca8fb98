use super::*;

fn bounds(max_tokens: u32) -> Bounds {
    Bounds { max_tokens, ..Bounds::default() }
}

fn said(answer: &Answer, from: u32, to: u32) -> String {
    (from..to).map(|token| answer.piece(token)).collect()
}

fn contexts() -> impl Iterator<Item = String> {
    (0..40).map(|turn| format!("user\nquestion {turn}\nassistant\n"))
}

#[test]
fn the_same_prompt_gives_the_same_answer_and_another_one_another() {
    let answers: Vec<_> = contexts().map(|c| Answer::new(7, &c, "", &bounds(1000)).text().to_owned()).collect();
    let again: Vec<_> = contexts().map(|c| Answer::new(7, &c, "", &bounds(1000)).text().to_owned()).collect();
    assert_eq!(answers, again);
    let distinct: std::collections::BTreeSet<_> = answers.iter().collect();
    assert_eq!(distinct.len(), answers.len());
    assert_ne!(Answer::new(8, "a", "", &bounds(50)).text(), Answer::new(7, "a", "", &bounds(50)).text());
}

#[test]
fn answers_end_of_themselves_with_a_sentence() {
    for context in contexts() {
        let answer = Answer::new(0, &context, "", &bounds(10_000));
        assert_eq!(answer.finish, Finish::Stop);
        assert!(answer.text().ends_with('.') && answer.text().starts_with(|c: char| c.is_ascii_uppercase()));
        assert!((12..2000).contains(&answer.tokens()), "{}", answer.tokens());
        assert_eq!(answer.piece(answer.tokens() - 1), "", "the last token only ends it");
    }
}

#[test]
fn a_partial_answer_goes_on_exactly_where_the_whole_one_would() {
    for context in contexts() {
        let whole = Answer::new(3, &context, "", &bounds(10_000));
        for cut in 0..=whole.text().len() {
            let rest = Answer::new(3, &context, &whole.text()[..cut], &bounds(10_000));
            assert_eq!(rest.text(), &whole.text()[cut..], "cut at {cut}");
            assert_eq!(rest.finish, Finish::Stop);
        }
    }
}

#[test]
fn a_plain_prompt_that_holds_part_of_the_answer_goes_on_alike() {
    for prompt in ["Once upon a time", "One. Two. Three. Four.", "读写", "ends with a space "] {
        let whole = Answer::new(0, "", prompt, &Bounds { ignore_eos: true, ..bounds(60) });
        for cut in (0..=whole.text().len()).filter(|&cut| whole.text().is_char_boundary(cut)) {
            let open = format!("{prompt}{}", &whole.text()[..cut]);
            let rest = Answer::new(0, "", &open, &Bounds { ignore_eos: true, ..bounds(200) });
            assert!(rest.text().starts_with(&whole.text()[cut..]), "{prompt:?} cut at {cut}");
        }
    }
}

#[test]
fn a_cut_at_a_token_and_the_tokens_left_give_the_same_end() {
    let whole = Answer::new(0, "context", "", &Bounds { ignore_eos: true, ..bounds(80) });
    for cut in 0..80 {
        let rest = Answer::new(0, "context", &said(&whole, 0, cut), &Bounds { ignore_eos: true, ..bounds(80 - cut) });
        assert_eq!(rest.text(), said(&whole, cut, 80));
        assert_eq!((rest.finish, rest.tokens()), (Finish::Length, 80 - cut));
    }
}

#[test]
fn bounds_are_kept_to_the_token() {
    for context in contexts() {
        let natural = Answer::new(0, &context, "", &bounds(10_000));
        let short = Answer::new(0, &context, "", &bounds(5));
        assert_eq!((short.tokens(), short.finish), (5, Finish::Length));
        assert!(natural.text().starts_with(short.text()));
        let long = Answer::new(0, &context, "", &Bounds { min_tokens: 500, ..bounds(10_000) });
        assert!(long.tokens() >= 500 && long.finish == Finish::Stop);
        assert!(long.text().starts_with(natural.text()));
        let endless = Answer::new(0, &context, "", &Bounds { ignore_eos: true, ..bounds(700) });
        assert_eq!((endless.tokens(), endless.finish), (700, Finish::Length));
    }
}

#[test]
fn a_stop_string_cuts_the_text_even_across_tokens() {
    let natural = Answer::new(0, "context", "", &bounds(400));
    for at in 1..natural.text().len() - 9 {
        let stop = natural.text()[at..at + 9].to_owned();
        let first = natural.text().find(&stop).unwrap();
        let answer = Answer::new(0, "context", "", &Bounds { stop: vec![stop.clone()], ..bounds(400) });
        assert_eq!(answer.text(), &natural.text()[..first]);
        assert_eq!((answer.finish, answer.stop_reason.as_deref()), (Finish::Stop, Some(stop.as_str())));
        assert_eq!(said(&answer, 0, answer.tokens()), answer.text());
        let kept = Answer::new(0, "context", "", &Bounds { stop: vec![stop.clone()], keep_stop: true, ..bounds(400) });
        assert_eq!(kept.text(), format!("{}{stop}", &natural.text()[..first]));
    }
}
