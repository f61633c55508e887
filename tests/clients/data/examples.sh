curl http://localhost:8080/v1/chat/completions -H "Content-Type: application/json" -d '{"model":"llama","messages":[{"role":"user","content":"Hello"}]}'
curl http://localhost:8080/v1/completions -H "Content-Type: application/json" -d '{"model":"llama","prompt":"Once upon a time"}'
curl http://localhost:8080/v1/embeddings -H "Content-Type: application/json" -d '{"model":"llama","input":"Hello world"}'
curl http://localhost:8080/v1/embeddings -H "Content-Type: application/json" -d '{"model":"embedding-model","input":["Hello world","Goodbye world"]}'
curl http://localhost:8080/v1/embeddings -H "Content-Type: application/json" -H "Authorization: Bearer no-key" -d '{"input":"hello","model":"GPT-4","encoding_format":"float"}'
curl -N http://localhost:8080/v1/chat/completions -H "Content-Type: application/json" -d '{"model":"llama","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Explain quantum computing in one sentence."}],"stream":true,"temperature":0.7}'
curl http://localhost:8080/v1/messages -H "Content-Type: application/json" -d '{"model":"llama","max_tokens":256,"messages":[{"role":"user","content":"What is the capital of France?"}]}'
curl http://localhost:8080/v1/messages/count_tokens -H "Content-Type: application/json" -d '{"model":"llama","messages":[{"role":"user","content":"Count my tokens"}]}'      # {"input_tokens": N}
curl http://localhost:8080/v1/chat/completions -H "Authorization: Bearer no-key" -H "Content-Type: application/json" -d '{"model":"gpt-3.5-turbo","messages":[{"role":"system","content":"You are ChatGPT, an AI assistant."},{"role":"user","content":"Write a limerick about python exceptions"}]}'
curl http://localhost:8080/v1/chat/completions -d '{"model":"gpt-3.5-turbo","tools":[{"type":"function","function":{"name":"python","description":"Runs code in an ipython interpreter...","parameters":{"type":"object","properties":{"code":{"type":"string","description":"Code to run"}},"required":["code"]}}}],"messages":[{"role":"user","content":"Print a hello world message with python."}]}'
curl http://localhost:8080/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}'           # same as /v1/chat/completions
curl http://localhost:8080/api/chat -d '{"model":"llama3.3:70b","messages":[{"role":"user","content":"Hello"}]}'  # Ollama's chat
curl -X POST http://localhost:11434/api/pull -d '{"name":"llama3.3:70b"}'
curl -X POST http://localhost:11434/api/show -d '{"name":"llama3.3:70b"}'
curl http://localhost:11434/api/ps
curl http://localhost:8080/v1/models
curl http://localhost:8080/health
curl http://localhost:8080/props
curl -X POST http://localhost:8080/tokenize -d '{"content":"Hello world"}'
