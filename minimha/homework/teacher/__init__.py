"""What teachers use: releases without solutions, grading, scores, and questions for oral exams."""
