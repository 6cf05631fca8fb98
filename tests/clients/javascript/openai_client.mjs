// What a user of the official `openai` package for Node sees of a service: models, chat, streams, embeddings, errors, and
// leaving early.
//
//     node openai_client.mjs BASE_URL MODEL [UNKNOWN_MODEL]
//
// Prints one line of JSON with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model, unknown = "no/such"] = process.argv.slice(2);
// The service under test holds no credentials; the package insists on one. With retries off, so that nothing that failed
// is hidden.
const client = new OpenAI({ baseURL, apiKey: "sk-none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Say something, please." }];
const plain = { model, messages, temperature: 0, max_tokens: 16 };

async function models() {
    const ids = [];
    for await (const found of client.models.list()) ids.push(found.id);
    assert.ok(ids.includes(model), `${model} is not among ${ids}`);
    assert.equal((await client.models.retrieve(model)).id, model);
    return { models: ids };
}

async function chat() {
    const answer = await client.chat.completions.create(plain);
    assert.ok(answer.choices[0].message.content, "an empty message");
    const { prompt_tokens: asked, completion_tokens: said, total_tokens: all } = answer.usage;
    assert.equal(asked + said, all);
    return { text: answer.choices[0].message.content };
}

async function stream(whole) {
    const options = { ...plain, stream: true, stream_options: { include_usage: true } };
    const pieces = [];
    let usage;
    for await (const event of await client.chat.completions.create(options)) {
        if (event.choices[0]?.delta?.content) pieces.push(event.choices[0].delta.content);
        usage = event.usage ?? usage;
    }
    assert.ok(pieces.length > 1, `${pieces.length} pieces of text: that is no stream`);
    assert.equal(pieces.join(""), whole);
    assert.ok(usage?.total_tokens > 0, "no usage in the stream");
    return { pieces: pieces.length };
}

async function embeddings() {
    // The package asks for base64 unless told otherwise, and takes it apart itself.
    const input = ["one", "two, and a little longer"];
    const packed = await client.embeddings.create({ model, input });
    const floats = await client.embeddings.create({ model, input, encoding_format: "float" });
    const [one, two] = packed.data.map((item) => item.embedding);
    assert.ok(one.length > 0 && one.length === two.length, "not one embedding for each text");
    assert.notDeepEqual(one, two);
    one.forEach((number, at) => assert.ok(Math.abs(number - floats.data[0].embedding[at]) < 1e-4, `number ${at}`));
    return { dimensions: one.length };
}

async function notFound() {
    const ways = {
        chat: () => client.chat.completions.create({ model: unknown, messages }),
        stream: () => client.chat.completions.create({ model: unknown, messages, stream: true }),
        embeddings: () => client.embeddings.create({ model: unknown, input: "a" }),
        retrieve: () => client.models.retrieve(unknown),
    };
    for (const [way, ask] of Object.entries(ways)) {
        await assert.rejects(ask, (error) => {
            assert.ok(error instanceof OpenAI.NotFoundError, `${way}: the error is ${error}`);
            assert.equal(error.code, "model_not_found", way);
            assert.ok(error.message.includes(unknown), `${way}: the message does not name the model: ${error.message}`);
            return true;
        });
    }
    return { notFound: Object.keys(ways) };
}

// Leaves a long stream after a few events, as a page does whose user has seen enough.
async function leave() {
    const long = await client.chat.completions.create({ ...plain, max_tokens: 5000, ignore_eos: true, stream: true });
    let seen = 0;
    for await (const event of long) {
        seen += Boolean(event.choices[0]?.delta?.content);
        if (seen === 3) break;
    }
    assert.equal(seen, 3, `the stream ended by itself after ${seen} pieces of text`);
    return { leftAfter: seen };
}

try {
    const seen = { ...(await models()), ...(await chat()) };
    Object.assign(seen, await stream(seen.text), await embeddings(), await notFound(), await leave());
    console.log(JSON.stringify(seen));
} catch (error) {
    console.error(`openai for Node at ${baseURL}: ${error.message}`);
    process.exitCode = 1;
}
